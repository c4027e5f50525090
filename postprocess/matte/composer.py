"""Persons over another background: from a person segmentation's probabilities to composed frames, in integers.

Frames are composed as they are decoded and encoded, in planes of YUV: half the samples of RGB, and no conversion. Each
plane is composed with the mask stretched to its own size::

    alpha    = floor(255 * clip((person - 0.5) / softness + 0.5, 0, 1) + 0.5)      at the network's size, 0 to 255
    stretch  = the mask's columns, then its rows, mixed in 256ths (``stretch.steps``), rounded half up after each
    composed = (alpha * frame + (255 - alpha) * background + 127) // 255

``Composer.compose`` is compiled; ``Composer.compose_reference`` says the same in NumPy and is equal in every bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onestream.postprocess.frames import FrameWork, Results
from onestream.postprocess.matte.background import Background
from onestream.postprocess.matte.stretch import Levels, mixed, steps
from onestream.postprocess.planes import check_out, each_plane, in_8_bits, plane_sizes
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.plan import Planner
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.wire.tensor_names import MATTE

if TYPE_CHECKING:
    from onestream.postprocess.matte.composer_gpu import GpuComposer
    from onestream.preprocess.video.common.orientation import Orientation
    from onestream.preprocess.video.gpu.surfaces import Surface


def alpha(person: npt.NDArray[np.floating[Any]], *, softness: float = 1.0) -> Levels:
    """The probability of a person, 0 to 1, as levels of 0 to 255 of the same shape.

    ``softness``, above 0 to 1, is the range of probabilities around one half that stays transparent in parts: 1 keeps
    the probability, less makes the edge harder.
    """
    check_softness(softness)
    one, half = np.float32(1), np.float32(0.5)
    stretched = (person.astype(np.float32) - half) * np.float32(1 / softness) + half
    levels: Levels = (np.clip(stretched, np.float32(0), one) * np.float32(255) + half).astype(np.uint8)
    return levels


def check_softness(softness: float) -> None:
    """Raise ``ValueError`` where it is not above 0 and at most 1."""
    if not 0 < softness <= 1:
        raise ValueError(f"softness must be above 0 and at most 1, got {softness}")


def picture_window(definition: Definition, size_hw: Size) -> Window:
    """The window of a definition's canvas in which a picture of ``size_hw`` lies, and so its matte.

    Raises ``ValueError`` where the definition crops, so that a part of the picture has no matte.
    """
    if not definition.resizes_once:
        raise ValueError(
            "the definition resizes more than once; a matte takes one resize, then padding, or a letterbox"
        )
    placed = Planner(definition)(size_hw)
    if placed.window.size_hw != placed.resized_hw:
        raise ValueError(
            f"the definition crops a picture of {size_hw[1]}x{size_hw[0]}; a matte takes a resize to the whole, "
            "or a letterbox"
        )
    return Window(*placed.offset, *placed.window.size_hw)


class Composer:
    """Puts the persons of frames over a background. An instance serves one stream, one frame at a time.

    ``rule`` tells in which YUV the colours of the background are to be written.
    """

    def __init__(self, background: Background, *, rule: ColorRule | None = None) -> None:
        self._background = background
        self._rule = rule or ColorRule()

    def compose(self, frame: Planes, matte: Levels, out: Planes | None = None) -> Planes:
        """The frame with what is not person replaced; 8 bit, else in the frame's own format.

        ``matte`` is the part of the ``alpha`` of the network that shows the frame (``picture_window``), of any size.
        The planes of ``out`` are written where given: 8 bit, the size and format of the frame, rows may be padded.
        Deeper samples are cut to 8 bit first. Raises ``ValueError`` where ``matte`` or ``out`` does not fit, or
        the rule cannot be resolved.
        """
        from onestream.postprocess.matte.kernels import compose, widen

        frame = in_8_bits(frame)
        if out is None:
            out = _empty_like(frame)
        else:
            check_out(out, frame)
        layers = self._background.layers(frame, self._rule)
        if matte.ndim != 2 or matte.size == 0:
            raise ValueError(f"a matte is (height, width), got shape {matte.shape}")
        matte = np.ascontiguousarray(matte)
        widened: dict[Size, Levels] = {}
        for size_hw, plane, into, layer in zip(
            plane_sizes(frame), each_plane(frame), each_plane(out), layers, strict=True
        ):
            wide = widened.get(size_hw)
            if wide is None:
                wide = widened[size_hw] = np.empty((matte.shape[0], size_hw[1]), np.uint8)
                widen(matte, *steps(size_hw[1], matte.shape[1]), wide)
            compose(plane, into, wide, *steps(size_hw[0], matte.shape[0]), layer.rows, *layer.steps)
        return out

    def compose_reference(self, frame: Planes, matte: Levels) -> Planes:
        """The same in NumPy: the specification of ``compose``."""
        frame = in_8_bits(frame)
        layers = self._background.layers(frame, self._rule, literally=True)
        composed = []
        for (height, width), plane, layer in zip(plane_sizes(frame), each_plane(frame), layers, strict=True):
            wide = mixed(matte, steps(width, matte.shape[1]), axis=1)
            level = mixed(wide, steps(height, matte.shape[0]), axis=0).astype(np.int32)
            behind = mixed(layer.rows, layer.steps, axis=0).astype(np.int32)
            before = plane[:height, :width].astype(np.int32)
            composed.append(((level * before + (255 - level) * behind + 127) // 255).astype(np.uint8))
        y, u, v = composed
        return replace(frame, y=y, u=u, v=v)


def _empty_like(frame: Planes) -> Planes:
    y, u, v = (np.empty(size_hw, np.uint8) for size_hw in plane_sizes(frame))
    return replace(frame, y=y, u=u, v=v)


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
