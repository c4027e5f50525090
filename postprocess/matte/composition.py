"""Puts persons of a video before another background, on the CPU or on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onestream.postprocess.frames import FrameWork, Results
from onestream.postprocess.matte.composer import Composer, picture_window
from onestream.postprocess.matte.stretch import Levels
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.video.common.color import Planes
from onestream.wire.tensor_names import MATTE

if TYPE_CHECKING:
    from onestream.postprocess.matte.composer_gpu import GpuComposer
    from onestream.preprocess.video.common.orientation import Orientation
    from onestream.preprocess.video.gpu.surfaces import Surface


class MatteComposition(FrameWork):
    """Puts what a matte shows over a background.

    Frames whose picture is on a GPU are composed there by ``on_gpu``, others by ``composer``; they are equal in every
    bit, and one stream may have both.
    """

    def __init__(self, composer: Composer, definition: Definition, *, on_gpu: GpuComposer | None = None) -> None:
        self._composer, self._on_gpu, self._definition = composer, on_gpu, definition
        self._window: tuple[Size, Window] | None = None

    def write(self, frame: Planes, results: Results, out: Planes) -> None:
        """See ``FrameWork.write``."""
        self._composer.compose(frame, self._part(results, frame.size_hw), out)

    def write_surface(self, surface: Surface, orientation: Orientation, results: Results, out: Planes) -> None:
        """See ``FrameWork.write_surface``."""
        assert self._on_gpu is not None, "who decodes on a GPU composes there"
        self._on_gpu.compose(surface, orientation, self._part(results, out.size_hw), out)

    def _part(self, results: Results, size_hw: Size) -> Levels:
        """The part of the matte in which the frame lies."""
        if self._window is None or self._window[0] != size_hw:
            self._window = size_hw, picture_window(self._definition, size_hw)
        window = self._window[1]
        part: Levels = results[MATTE][window.top : window.top + window.height, window.left : window.left + window.width]
        return part
