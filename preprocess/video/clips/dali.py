"""Frames decoded by DALI: VP8, VP9 and MJPEG on the CPU, H.264, HEVC, AV1 and MPEG-4 as well on a GPU (NVDEC).

Which frames, and whether the file is whole, is decided as everywhere else; DALI is handed frame numbers. It converts to
RGB itself, and cannot be told how: always by BT.601, in the range that the stream says, with interpolated chroma (on a
GPU: dali/operators/video/color_space.cu). Videos that are in another matrix are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onestream.preprocess.backends.base import Device
from onestream.preprocess.backends.dali_graph import new_pipeline
from onestream.preprocess.errors import BackendMissing, BadSample, CannotCompile
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.clips.frames import Frames, WindowOf
from onestream.preprocess.video.common.color import ColorRule, Pixels, planes_of, resolved
from onestream.preprocess.video.common.orientation import Orientation, orientation_of
from onestream.wire.install import install_command

try:
    from nvidia.dali import fn, types
except ImportError as error:
    raise BackendMissing(f"the dali backend needs nvidia-dali: {install_command('train')}") from error

CODECS: dict[Device, frozenset[str]] = {
    "cpu": frozenset({"vp8", "vp9", "mjpeg"}),
    "gpu": frozenset({"vp8", "vp9", "mjpeg", "h264", "hevc", "av1", "mpeg4"}),
}
"""By FFmpeg's names, what ``fn.decoders.video`` of DALI 2.4 documents."""

MATRIX = "bt601"


def decode_frames(encoded: Any, numbers: Any, *, device: Device) -> Any:
    """Node of RGB uint8 (frames, height, width, 3), from nodes of a file's bytes and of frame numbers (int32)."""
    return fn.decoders.video(encoded, frames=numbers, device="mixed" if device == "gpu" else "cpu")


class DaliFrames(Frames):
    """See ``Frames``. Frames of a GPU are brought to the host."""

    def __init__(self, rule: ColorRule, *, device: Device, threads: int) -> None:
        if rule.matrix not in ("auto", MATRIX):
            raise CannotCompile(f"dali converts video by {MATRIX} only, not {rule.matrix!r}; use backend 'pyav'")
        if rule.range != "auto":
            raise CannotCompile(f"dali takes the range of each stream, so range must be 'auto', got {rule.range!r}")
        self._rule, self._device = rule, device
        self._pipeline = new_pipeline(device=device, max_batch_size=1, threads=threads)
        with self._pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            numbers = fn.external_source(name="numbers", dtype=types.INT32, ndim=1)
            self._pipeline.set_outputs(decode_frames(encoded, numbers, device=device))
        self._pipeline.build()

    def read(self, video: VideoFile, numbers: Sequence[int], window_of: WindowOf) -> Iterator[tuple[int, Pixels, Size]]:
        """See ``Frames.read``."""
        self._check(video)
        content = video.source if isinstance(video.source, bytes) else Path(video.source).read_bytes()
        try:
            (output,) = self._pipeline.run(
                encoded=[np.frombuffer(content, np.uint8)], numbers=[np.array(numbers, np.int32)]
            )
        except RuntimeError as error:
            if "decoders.video" not in str(error):
                raise
            raise BadSample(f"{video.name}: frame {numbers[0]} or a later one: dali cannot decode it") from None
        frames = np.asarray(output.as_cpu()[0])
        for number, pixels in zip(numbers, frames, strict=True):
            size_hw = pixels.shape[0], pixels.shape[1]
            window = window_of(size_hw)
            yield (
                number,
                np.ascontiguousarray(
                    pixels[window.top : window.top + window.height, window.left : window.left + window.width]
                ),
                size_hw,
            )

    def close(self) -> None:
        """Release the pipeline."""
        self._pipeline = None

    def _check(self, video: VideoFile) -> None:
        """Raise ``BadSample`` for a video that DALI would decode otherwise than our other backends, or not at all."""
        allowed = CODECS[self._device]
        if video.codec not in allowed:
            raise BadSample(
                f"{video.name}: dali does not decode {video.codec} on a {self._device.upper()}, "
                f"only {', '.join(sorted(allowed))}; use backend 'pyav'"
            )
        _, frame = next(video.frames([0]))
        try:
            planes = planes_of(frame)
            upright = orientation_of(frame) == Orientation()
            colors = resolved(planes, self._rule)
        except ValueError as error:
            raise BadSample(f"{video.name}: frame 0: {error}") from None
        if not upright:
            raise BadSample(f"{video.name}: is displayed turned, which dali ignores; use backend 'pyav'")
        if colors.matrix != MATRIX:
            raise BadSample(
                f"{video.name}: is in {colors.matrix}, and dali converts by {MATRIX} only; use backend 'pyav'"
            )
        if colors.is_mapped:
            raise BadSample(f"{video.name}: is HDR ({colors.transfer}), which dali does not map; use backend 'pyav'")
