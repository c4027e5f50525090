"""Makes a network's input of a video: the frames of a clip, each by the same definition as a still image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.backends.base import Device, Sample, network_layout
from onestream.preprocess.backends.exactness import refuse_regions
from onestream.preprocess.backends.reference import in_color, varied_pixels
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BackendMissing, BadImage, BadSample, CannotCompile
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import Part, Placement, free_sizes, place
from onestream.preprocess.variation import AS_FILMED, Sampling, Timing, Variation, Vary, part_of_variation
from onestream.preprocess.video.clips.choose_frames import Chosen, Clip, choose_frames
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.clips.frames import Frames, PyavFrames, VideoBackend
from onestream.preprocess.video.clips.probe import VideoSource
from onestream.preprocess.video.common.color import ColorRule, Pixels
from onestream.preprocess.video.common.tolerances import Other
from onestream.wire.install import install_command

if TYPE_CHECKING:
    from onestream.preprocess.backends.finish import CpuFinish


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
        if not row.literally and (not definition.resizes_once or len(definition.fills) > 1):
            raise CannotCompile(
                f"the video backend {backend} does one resize, before any crop or pad, and fills with one value; "
                "only 'reference' does this definition"
            )
        self.definition, self.clip, self.limits = definition, clip, limits or Limits()
        self._threads = threads
        self._frames = row.open(color or ColorRule(), device, threads)
        self._finish: _Serving = (_Literally if row.literally else _Compiled)(definition, self.limits)

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
        finish = self._finish if vary is None else self._finish.varied(vary)
        with VideoFile(source, name=name, threads=self._threads, limits=self.limits) as video:
            try:
                chosen = choose_frames(self.clip, video.index.timeline, timing)
                self._check_length(chosen, out)
                return self._fill(video, chosen, finish, out)
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

    def _fill(self, video: VideoFile, chosen: Chosen, finish: _Finish, out: npt.NDArray[Any] | None) -> Sample:
        places: defaultdict[int | None, list[int]] = defaultdict(list)
        for place_, number in enumerate(chosen):
            places[number].append(place_)
        numbers = sorted(number for number in places if number is not None)
        shape: Size | None = None
        for number, pixels, size_hw in self._frames.read(video, numbers, finish.window):
            sample = finish.finish(pixels, size_hw)
            if out is None:
                out = np.empty((len(chosen), *sample.shape), sample.dtype)
            out[places[number]] = sample
            shape = size_hw
        assert out is not None
        assert shape is not None
        if None in places:
            window = finish.window(shape)
            level = np.full((window.height, window.width, 3), self.clip.pad_level, np.uint8)
            out[places[None]] = finish.finish(level, shape)
        return out


class _Finish(ABC):
    """Makes a sample of a frame's RGB: it says which window is needed, and works on that."""

    @abstractmethod
    def window(self, size_hw: Size) -> Window: ...

    @abstractmethod
    def finish(self, pixels: Pixels, size_hw: Size) -> Sample: ...


class _Serving(_Finish):
    """As serving makes it: the definition's own geometry."""

    def __init__(self, definition: Definition, limits: Limits) -> None:
        self._definition, self._limits = definition, limits

    def window(self, size_hw: Size) -> Window:
        for free_hw in free_sizes(self._definition, size_hw):
            self._limits.check_resized(free_hw)
        return self._read(size_hw)

    @abstractmethod
    def varied(self, vary: Vary) -> _Finish:
        """The same for one clip whose frames are varied."""

    @abstractmethod
    def _read(self, size_hw: Size) -> Window: ...


class _Literally(_Serving):
    """One operation after the other on the whole frame, by Pillow."""

    def finish(self, pixels: Pixels, size_hw: Size) -> Sample:  # noqa: ARG002 (the frame is whole)
        image = in_color(Image.fromarray(pixels), self._definition.color)
        for operation in self._definition.geometry:
            image = operation.apply(image)
        array = np.asarray(image)
        return network_layout(self._definition, array if array.ndim == 3 else array[:, :, None])

    def varied(self, vary: Vary) -> _Finish:
        return _VariedLiterally(self._definition, vary)

    def _read(self, size_hw: Size) -> Window:
        return Window(0, 0, *size_hw)


class _VariedLiterally(_Finish):
    """The reference's variation of the whole frame."""

    def __init__(self, definition: Definition, vary: Vary) -> None:
        self._definition, self._vary = definition, cache(vary)

    def window(self, size_hw: Size) -> Window:
        return Window(0, 0, *size_hw)

    def finish(self, pixels: Pixels, size_hw: Size) -> Sample:
        image = in_color(Image.fromarray(pixels), self._definition.color)
        return network_layout(self._definition, varied_pixels(self._definition, image, self._vary(size_hw)))


class _Compiled(_Serving):
    """The compiled resize and tables of the image backends, on the part that the crop keeps."""

    def __init__(self, definition: Definition, limits: Limits) -> None:
        super().__init__(definition, limits)
        try:
            from onestream.preprocess.backends.finish import CpuFinish
        except ImportError as error:
            raise BackendMissing(f"the compiled resize needs numba: {install_command('train')}") from error
        self._finish = CpuFinish(definition)

    def finish(self, pixels: Pixels, size_hw: Size) -> Sample:
        return self._finish.finish(pixels, *self._placed(size_hw))

    def varied(self, vary: Vary) -> _Finish:
        return _VariedCompiled(self._definition, self._finish, vary)

    def _read(self, size_hw: Size) -> Window:
        _, part = self._placed(size_hw)
        return Window(*part.anchor, *part.shape)

    def _placed(self, size_hw: Size) -> tuple[Placement, Part]:
        placement = place(self._definition, size_hw)
        return placement, self._finish.part(placement)


class _VariedCompiled(_Finish):
    """The same loops, on the part that the variation shows."""

    def __init__(self, definition: Definition, finish: CpuFinish, vary: Vary) -> None:
        self._definition, self._finish, self._vary = definition, finish, vary
        # All frames of a video have one size.
        self._placed = cache(self._place)

    def window(self, size_hw: Size) -> Window:
        _, part, _ = self._placed(size_hw)
        return Window(*part.anchor, *part.shape)

    def finish(self, pixels: Pixels, size_hw: Size) -> Sample:
        return self._finish.vary(pixels, *self._placed(size_hw))

    def _place(self, size_hw: Size) -> tuple[Variation, Part, Sampling | None]:
        variation = self._vary(size_hw)
        return variation, *part_of_variation(self._definition, variation, size_hw)


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
