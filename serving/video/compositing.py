"""What a pipeline with ``video.output`` does to its frames: persons before another background, or boxes drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onestream.postprocess.detection.drawing import draw_boxes
from onestream.postprocess.kinds import AnyPostprocess, BlurBackground, ColorBackground, Detection, Matte
from onestream.postprocess.matte.background import Background, Blur, Color, Picture, read_picture
from onestream.postprocess.matte.composer import Composer, picture_window
from onestream.postprocess.matte.stretch import Levels
from onestream.postprocess.planes import copy_in_8_bits
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import Surface
from onestream.serving.pipeline import BACKGROUND_FILE
from onestream.serving.video.composed import FrameWork
from onestream.serving.video.stream_types import Tensors
from onestream.wire.tensor_names import BOXES, CLASS_IDS, LABELS, MATTE, SCORES

if TYPE_CHECKING:
    from onestream.postprocess.matte.composer_gpu import GpuComposer
    from onestream.postprocess.planes_gpu import PlanesTaker
    from onestream.serving.video.gpu import GpuStreams


def frame_work(
    options: AnyPostprocess, definition: Definition, folder: Path, *, rule: ColorRule, gpu: GpuStreams | None
) -> FrameWork:
    """What is done to the frames of a new stream. ``folder`` is that of the model, ``gpu`` what decodes, if any.

    Raises ``OSError`` where the picture of a background is missing and ``ValueError`` where it cannot be read, or for a
    kind of postprocessing that does nothing to frames.
    """
    if isinstance(options, Matte):
        background = background_of(options, folder)
        on_gpu = gpu.composer(background, rule=rule) if gpu else None
        return MatteComposition(Composer(background, rule=rule), definition, on_gpu=on_gpu)
    if isinstance(options, Detection):
        return DrawnBoxes(rule, from_gpu=gpu.taker() if gpu else None)
    raise ValueError(f"the postprocessing {options.kind} does nothing to frames")


def background_of(options: Matte, folder: Path) -> Background:
    """A new background, for one stream. ``folder`` is that of the model, where the picture of a background lies.

    Raises ``OSError`` where the picture is missing and ``ValueError`` where it cannot be read.
    """
    background = options.background
    if isinstance(background, ColorBackground):
        return Color(background.rgb)
    if isinstance(background, BlurBackground):
        return Blur(background.radius)
    return Picture(read_picture((folder / BACKGROUND_FILE).read_bytes()))


class MatteComposition(FrameWork):
    """Puts what a matte shows over a background.

    Frames whose picture is on a GPU are composed there by ``on_gpu``, others by ``composer``; they are equal in every
    bit, and one stream may have both.
    """

    def __init__(self, composer: Composer, definition: Definition, *, on_gpu: GpuComposer | None = None) -> None:
        self._composer, self._on_gpu, self._definition = composer, on_gpu, definition
        self._window: tuple[Size, Window] | None = None

    def write(self, frame: Planes, results: Tensors, out: Planes) -> None:
        """See ``FrameWork.write``."""
        self._composer.compose(frame, self._part(results, frame.size_hw), out)

    def write_surface(self, surface: Surface, orientation: Orientation, results: Tensors, out: Planes) -> None:
        """See ``FrameWork.write_surface``."""
        assert self._on_gpu is not None, "who decodes on a GPU composes there"
        self._on_gpu.compose(surface, orientation, self._part(results, out.size_hw), out)

    def _part(self, results: Tensors, size_hw: Size) -> Levels:
        """The part of the matte in which the frame lies."""
        if self._window is None or self._window[0] != size_hw:
            self._window = size_hw, picture_window(self._definition, size_hw)
        window = self._window[1]
        part: Levels = results[MATTE][window.top : window.top + window.height, window.left : window.left + window.width]
        return part


class DrawnBoxes(FrameWork):
    """Draws the objects that were found, on the CPU: a frame on a GPU is downloaded first, since it is encoded here."""

    def __init__(self, rule: ColorRule, *, from_gpu: PlanesTaker | None = None) -> None:
        self._rule, self._from_gpu = rule, from_gpu

    def write(self, frame: Planes, results: Tensors, out: Planes) -> None:
        """See ``FrameWork.write``."""
        copy_in_8_bits(frame, out)
        self._draw(results, out)

    def write_surface(self, surface: Surface, orientation: Orientation, results: Tensors, out: Planes) -> None:
        """See ``FrameWork.write_surface``."""
        assert self._from_gpu is not None, "who decodes on a GPU takes frames from there"
        self._from_gpu.take(surface, orientation, out)
        self._draw(results, out)

    def _draw(self, results: Tensors, out: Planes) -> None:
        draw_boxes(out, results[BOXES], results[SCORES], results[CLASS_IDS], results[LABELS], rule=self._rule)
