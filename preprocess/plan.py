"""What is done to an image, by its size: planned once, for every backend, from a definition or from a variation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Mapping, Size, Spans, Window, reduced
from onestream.preprocess.limits import Limits
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import SUPPORT

if TYPE_CHECKING:
    from onestream.preprocess.variation import Variation, Vary

_PLANS_KEPT = 256
_CHROMA_MARGIN = 2
"""JPEG decoders interpolate chroma from neighbours that a cut would take away."""
_CUBIC_REACH = 2
"""Pixels to each side that the sampling of a perspective transform reads."""
_Floats = npt.NDArray[np.float64]
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Plan:
    """How an upright image of ``source_hw`` comes to its canvas.

    ``cut`` of it, beyond which no filter reads, is resized to ``resized_hw``; of that, ``window`` (always inside) is
    kept and put at ``offset`` = (top, left) on a canvas of ``canvas_hw`` filled with a constant. The window is empty,
    0 x 0, where crops and pads leave nothing of the image. ``reach`` is how many pixels the filter reads to each side
    at scale 1; None where all of the image must be decoded. With a ``factor`` above 1 the image is decoded whole, at
    1/``factor`` of ``source_hw`` (``moves.reduced``); everything else stays in the pixels of ``source_hw``, but
    ``source``, ``part`` and ``spans``, which are in those decoded. Of a definition that resizes more than once
    (``Definition.resizes_once``) only ``canvas_hw`` holds.

    ``variation`` takes the place of the definition's geometry: the window may be mirrored, or, where the variation is
    no box of the image, ``transform``, float64 (3, 3), says for (x, y, 1) of the canvas where in the resized ``cut``
    its level is taken (``backends.reference.rectified``). ``moved``, float64 (2, height, width), is what is added to x
    and y before, if anything is.
    """

    source_hw: Size
    cut: Window
    resized_hw: Size
    window: Window
    offset: Size
    canvas_hw: Size
    reach: int | None
    variation: Variation | None = None
    transform: _Floats | None = None
    moved: _Floats | None = None
    factor: int = 1

    @cached_property
    def fills(self) -> bool:
        """Whether any of the canvas is not covered by the image."""
        return self.window.size_hw != self.canvas_hw

    @cached_property
    def source(self) -> Spans:
        """What of the decoded image the window shows, along y and x in its pixels, not rounded."""
        return _source(self.cut, self.resized_hw, self.window, self.factor)

    @cached_property
    def decoded_hw(self) -> Size:
        """The size of ``cut`` as it is decoded."""
        return reduced(self.cut.size_hw, self.factor)

    @cached_property
    def part(self) -> Window:
        """What must be decoded, with the margin that the filter reads."""
        if self.variation is not None:
            return _around(self.cut.spans, (_CHROMA_MARGIN, _CHROMA_MARGIN), self.source_hw)
        if self.reach is None:
            return self.cut
        if self.factor > 1:
            return Window(0, 0, *reduced(self.source_hw, self.factor))
        # The filter grows where the image shrinks. A pixel more for the chroma's neighbours.
        margins = [
            math.ceil((self.reach + 1) * max(side / after, 1.0)) + 1
            for side, after in zip(self.cut.size_hw, self.resized_hw, strict=True)
        ]
        return _around(self.source, margins, self.cut.size_hw)

    @cached_property
    def spans(self) -> Spans:
        """``source`` in the pixels of ``part``."""
        (top, bottom), (left, right) = self.source
        part = self.part
        return (top - part.top, bottom - part.top), (left - part.left, right - part.left)

    @cached_property
    def part_values(self) -> dict[str, npt.NDArray[np.int32]]:
        """``part`` as a graph of DALI is told to decode it; see ``dali_graph.GraphInputs``."""
        part = self.part
        return {"anchor": np.array((part.top, part.left), np.int32), "shape": np.array(part.size_hw, np.int32)}

    @property
    def mirrored(self) -> tuple[bool, bool]:
        """Whether the window is mirrored top to bottom, and left to right."""
        if self.variation is None or self.transform is not None:
            return False, False
        return self.variation.upside_down, self.variation.flip


class Planner:
    """Plans images for one definition; the plans of sizes that come again are kept. Threads may share it.

    Without ``limits`` every size is planned.
    """

    def __init__(self, definition: Definition, limits: Limits | None = None) -> None:
        self.definition, self._limits = definition, limits
        self._plans: dict[Size, Plan] = {}
        self._reduced: dict[Size, Plan] = {}
        self._mappings: dict[Size, Mapping] = {}
        resize = definition.resize
        self._reach = 1 if resize is None else SUPPORT.get(resize.filter)
        self._moves = [(move, isinstance(move, Resize), move.is_free) for move in definition.geometry]

    def __call__(self, size_hw: Size, vary: Vary | None = None, *, is_jpeg: bool = False) -> Plan:
        """The plan of an upright image of ``size_hw``, or of the variation that ``vary`` gives it.

        A JPEG that is not varied is decoded at a fraction of its size where the definition says so.
        Raises ``BadImage`` (too_many_pixels) where a size on the way breaks a limit or a pad would have to cut, and
        with ``vary`` as ``canvas_of``.
        """
        if vary is not None:
            return self._varied(vary(size_hw), size_hw)
        if is_jpeg and self.definition.scales_dct:
            return _kept(self._reduced, size_hw, self._planned_reduced)
        return _kept(self._plans, size_hw, self._planned)

    def mapping(self, size_hw: Size) -> Mapping:
        """Where the points of an image of ``size_hw`` come to lie by the definition. Raises likewise."""
        return _kept(self._mappings, size_hw, self._mapped)

    def _planned(self, size_hw: Size) -> Plan:
        cut = kept = Window(0, 0, *size_hw)
        current = resized = size_hw
        top = left = 0
        for move, resizes, is_free in self._moves:
            window = move.window(current)
            current = window.height, window.width
            if resizes:
                resized, kept = current, window
            else:
                top, left = top + window.top, left + window.left
                kept = _intersection(kept, top, left, *current)
            if is_free and self._limits is not None:
                self._limits.check_resized(current)
        if kept.height < 1 or kept.width < 1:
            kept, top, left = Window(0, 0, 0, 0), 0, 0
        return Plan(size_hw, cut, resized, kept, (kept.top - top, kept.left - left), current, self._reach)

    def _planned_reduced(self, size_hw: Size) -> Plan:
        resize = self.definition.resize
        assert resize is not None
        return replace(self(size_hw), factor=resize.decoding_factor(size_hw))

    def _mapped(self, size_hw: Size) -> Mapping:
        canvas_hw = self(size_hw).canvas_hw
        current = size_hw
        scale, offset = [1.0, 1.0], [0.0, 0.0]
        shown = [(0.0, float(side)) for side in size_hw]
        for move, resizes, _ in self._moves:
            window = move.window(current)
            for axis, (first, side) in enumerate(zip((window.top, window.left), window.size_hw, strict=True)):
                low, high = shown[axis]
                if resizes:
                    ratio = side / current[axis]
                    scale[axis], offset[axis] = scale[axis] * ratio, offset[axis] * ratio
                    shown[axis] = low * side / current[axis], high * side / current[axis]
                else:
                    offset[axis] -= first
                    shown[axis] = min(max(low - first, 0.0), float(side)), min(max(high - first, 0.0), float(side))
            current = window.size_hw
        return Mapping(size_hw, canvas_hw, (scale[0], scale[1]), (offset[0], offset[1]), (shown[0], shown[1]))

    def _varied(self, variation: Variation, size_hw: Size) -> Plan:
        canvas_hw = variation.canvas(self.definition)
        cut, resized_hw, transform, moved = variation.box_in(size_hw), canvas_hw, None, None
        if cut is None:
            cut, resized_hw, transform, moved = _sampling(variation, canvas_hw, size_hw)
        window = Window(0, 0, *resized_hw)
        return Plan(size_hw, cut, resized_hw, window, (0, 0), canvas_hw, None, variation, transform, moved)


def _kept(made: dict[Size, _Made], size_hw: Size, make: Callable[[Size], _Made]) -> _Made:
    """What was made for this size, or is made now; the sizes before are forgotten when they are too many."""
    found = made.get(size_hw)
    if found is None:
        if len(made) >= _PLANS_KEPT:
            made.clear()
        found = made[size_hw] = make(size_hw)
    return found


def _source(cut: Window, resized_hw: Size, window: Window, factor: int) -> Spans:
    """``cut`` begins at 0 where the factor is above 1."""
    down, across = cut.height / factor / resized_hw[0], cut.width / factor / resized_hw[1]
    return (
        (cut.top + window.top * down, cut.top + (window.top + window.height) * down),
        (cut.left + window.left * across, cut.left + (window.left + window.width) * across),
    )


def _around(source: Spans, margins: Sequence[int], size_hw: Size) -> Window:
    """The whole pixels of an image of ``size_hw`` in ``source``, with a margin along y and x."""
    (top, bottom), (left, right) = (
        (max(0, math.floor(first) - margin), min(side, math.ceil(last) + margin))
        for (first, last), margin, side in zip(source, margins, size_hw, strict=True)
    )
    return Window(top, left, bottom - top, right - left)


def _intersection(window: Window, top: int, left: int, height: int, width: int) -> Window:
    first, begin = max(window.top, top), max(window.left, left)
    last = min(window.top + window.height, top + height)
    end = min(window.left + window.width, left + width)
    return Window(first, begin, last - first, end - begin)


def _sampling(variation: Variation, canvas_hw: Size, source_hw: Size) -> tuple[Window, Size, _Floats, _Floats | None]:
    """How the canvas of a variation that is no box is sampled: ``cut``, ``resized_hw``, ``transform``, ``moved``.

    What is cut is made smaller, by the triangle filter with antialias, so that a pixel of the canvas takes about one of
    it; where it would grow it stays. How much smaller follows from the transform at the canvas's middle, along each
    axis of the image by itself. It is what the canvas shows of the image and what the filters read around that; where
    it shows nothing of the image it is one pixel, of which nothing is read.
    """
    from onestream.preprocess.projection import Projection

    matrix = Projection(source_hw, canvas_hw, variation.corners).matrix
    x, y, divisor = matrix @ (canvas_hw[1] / 2, canvas_hw[0] / 2, 1.0)
    moved = None if variation.warp is None else variation.warp.displacements(canvas_hw)
    corners = np.array(variation.corners) if moved is None else _looked_up(matrix, moved)
    first, kept, shrunk = [0, 0], [0, 0], [0, 0]
    for axis, row, middle in ((0, matrix[1], y), (1, matrix[0], x)):
        # Source pixels along this axis for a pixel of the canvas.
        across, down = (row[:2] - matrix[2, :2] * middle / divisor) / divisor
        scale = max(1.0, math.hypot(across, down))
        reach = math.ceil((_CUBIC_REACH + 1) * scale) + 1
        side, places = source_hw[axis], corners[:, 1 - axis]
        low = min(max(math.floor(places.min()) - reach, 0), side - 1)
        high = max(min(math.ceil(places.max()) + reach, side), low + 1)
        first[axis], kept[axis] = low, high - low
        shrunk[axis] = max(1, round(kept[axis] / scale))
    cut = Window(first[0], first[1], kept[0], kept[1])
    to_cut = np.array([[1, 0, -cut.left], [0, 1, -cut.top], [0, 0, 1]], np.float64)
    to_shrunk = np.diag([shrunk[1] / cut.width, shrunk[0] / cut.height, 1.0])
    return cut, (shrunk[0], shrunk[1]), np.ascontiguousarray(to_shrunk @ to_cut @ matrix), moved


def _looked_up(matrix: _Floats, moved: _Floats) -> _Floats:
    """Where in the image the pixels of a displaced canvas look, x and y, (pixels, 2)."""
    rows, columns = np.mgrid[: moved.shape[1], : moved.shape[2]] + 0.5
    x, y, divisor = np.tensordot(matrix, np.stack([columns + moved[0], rows + moved[1], np.ones_like(rows)]), 1)
    places: _Floats = np.stack([x / divisor, y / divisor], axis=-1).reshape(-1, 2)
    return places
