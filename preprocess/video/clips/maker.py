"""Makes a network's input of a video: the frames of a clip, each by the same definition as a still image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.backends.base import Device, Sample, network_layout, refuse_inexact, refuse_regions
from onestream.preprocess.backends.reference import in_color, planned_pixels
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BackendMissing, BadImage, BadSample, CannotCompile
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import Plan, Planner
from onestream.preprocess.variation import AS_FILMED, Timing, Vary
from onestream.preprocess.video.clips.choose_frames import Chosen, Clip, choose_frames
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.clips.frames import Frames, PyavFrames, VideoBackend
from onestream.preprocess.video.clips.probe import VideoSource
from onestream.preprocess.video.common.color import ColorRule, Pixels
from onestream.preprocess.video.common.tolerances import Other
from onestream.wire.install import install_command


class ClipMaker:
    """A definition and a choice of frames, made executable on videos.

    Each frame is decoded to RGB by ``color``, turned as the video says, and then goes through the definition's
    geometry and normalization as a decoded image does. ``backend`` *reference* is the specification, in NumPy and
    Pillow; *pyav* decodes on the CPU and converts only what the crop keeps; *dali* decodes VP8, VP9 and MJPEG on the
    CPU and more on a GPU. ``threads``: of the decoder.

    Raises ``CannotCompile`` naming what the backend cannot do exactly. An instance is not thread-safe.
    """

    def __init__(
        self,
        definition: Definition,
        clip: Clip,
        *,
        backend: VideoBackend = "pyav",
        device: Device = "cpu",
        color: ColorRule | None = None,
        threads: int = 1,
        limits: Limits | None = None,
    ) -> None:
        refuse_regions(definition, what="a video")
        row = _row(backend, device)
        if not row.literally:
            refuse_inexact(definition, backend=f"the video backend {backend}", own_filter=False)
        self.definition, self.clip, self.limits = definition, clip, limits or Limits()
        self._threads = threads
        self._frames = row.open(color or ColorRule(), device, threads)
        self._planner, self._is_whole = Planner(definition, self.limits), row.literally
        self._finish: Callable[[Pixels, Plan], Sample] = partial(_literally, definition)
        if not row.literally:
            try:
                from onestream.preprocess.backends.finish import CpuFinish
            except ImportError as error:
                raise BackendMissing(f"the compiled resize needs numba: {install_command('train')}") from error
            self._finish = CpuFinish(definition).finish

    def make(
        self,
        source: VideoSource,
        *,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        vary: Vary | None = None,
        timing: Timing = AS_FILMED,
    ) -> Sample:
        """The clip of a video, (frames, …) as the definition's output says, written to ``out`` where it is given.

        ``vary`` gives one variation, of all frames alike, in place of the definition's geometry; ``timing`` when the
        frames are taken. Raises ``BadSample`` naming the video, and the frame where there is one to name.
        """
        # All frames of a video have one size.
        plan = cache(partial(self._planner, vary=vary))
        with VideoFile(source, name=name, threads=self._threads, limits=self.limits) as video:
            try:
                chosen = choose_frames(self.clip, video.index.timeline, timing)
                self._check_length(chosen, out)
                return self._fill(video, chosen, plan, out)
            except (ValueError, BadImage) as error:
                reason = error.reason if isinstance(error, BadImage) else error
                raise BadSample(f"{video.name}: {reason}") from None

    def close(self) -> None:
        """Release what the backend holds."""
        self._frames.close()

    def _check_length(self, chosen: Chosen, out: npt.NDArray[Any] | None) -> None:
        if out is not None and len(out) != len(chosen):
            raise ValueError(
                f"gives {len(chosen)} frames of {len(out)}; "
                "choose a pad_mode (constant, edge, reflect) to fill clips up"
            )

    def _fill(
        self, video: VideoFile, chosen: Chosen, plan: Callable[[Size], Plan], out: npt.NDArray[Any] | None
    ) -> Sample:
        def window(size_hw: Size) -> Window:
            part = plan(size_hw).part
            return Window(0, 0, *size_hw) if self._is_whole else part

        places: defaultdict[int | None, list[int]] = defaultdict(list)
        for place_, number in enumerate(chosen):
            places[number].append(place_)
        numbers = sorted(number for number in places if number is not None)
        shape: Size | None = None
        for number, pixels, size_hw in self._frames.read(video, numbers, window):
            sample = self._finish(pixels, plan(size_hw))
            if out is None:
                out = np.empty((len(chosen), *sample.shape), sample.dtype)
            out[places[number]] = sample
            shape = size_hw
        assert out is not None
        assert shape is not None
        if None in places:
            level = np.full((*window(shape).size_hw, 3), self.clip.pad_level, np.uint8)
            out[places[None]] = self._finish(level, plan(shape))
        return out


def _literally(definition: Definition, pixels: Pixels, plan: Plan) -> Sample:
    """One operation after the other on the whole frame, by Pillow."""
    image = in_color(Image.fromarray(pixels), definition.color)
    return network_layout(definition, planned_pixels(definition, image, plan))


def _by_pyav(rule: ColorRule, _device: Device, _threads: int, *, literally: bool = False) -> Frames:
    return PyavFrames(rule, literally=literally)


def _by_dali(rule: ColorRule, device: Device, threads: int) -> Frames:
    from onestream.preprocess.video.clips.dali import DaliFrames

    return DaliFrames(rule, device=device, threads=threads)


@dataclass(frozen=True, slots=True)
class VideoBackendRow:
    """What reads frames: ``open`` takes the rule of colours, the device and the decoder's threads.

    ``literally``: by the specification, frame by frame. ``own_colors``: of one that decodes some formats only, and
    converts them to RGB by itself, the entries of ``common.tolerances`` by device.
    """

    devices: tuple[Device, ...]
    open: Callable[[ColorRule, Device, int], Frames]
    literally: bool = False
    own_colors: Mapping[Device, Other] = field(default_factory=dict)


VIDEO_BACKENDS: dict[VideoBackend, VideoBackendRow] = {
    "reference": VideoBackendRow(("cpu",), partial(_by_pyav, literally=True), literally=True),
    "pyav": VideoBackendRow(("cpu",), _by_pyav),
    "dali": VideoBackendRow(("cpu", "gpu"), _by_dali, own_colors={"cpu": "dali-cpu", "gpu": "dali-gpu"}),
}


def _row(backend: VideoBackend, device: Device) -> VideoBackendRow:
    """The row of a backend that runs on a device. Raises ``CannotCompile``."""
    row = VIDEO_BACKENDS.get(backend)
    if row is None:
        raise CannotCompile(f"unknown video backend {backend!r}; available: {', '.join(VIDEO_BACKENDS)}")
    if device not in row.devices:
        raise CannotCompile(f"the video backend {backend} runs on the device 'cpu' only")
    return row
