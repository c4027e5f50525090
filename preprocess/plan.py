"""Integer sizes and windows of a definition for one image, computed once for every backend."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Mapping, Size, Window
from onestream.preprocess.moves import Resize


def free_sizes(definition: Definition, size_hw: Size) -> list[Size]:
    """The sizes on the way of an image of ``size_hw`` that follow from it: after a resize, and a pad to a multiple.

    Limits judge these (``Limits.check_resized``). Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
    """
    found, current = [], size_hw
    for operation in definition.geometry:
        current = operation.window(current).size_hw
        if operation.is_free:
            found.append(current)
    return found


@dataclass(frozen=True, slots=True)
class Placement:
    """One resize followed by crops and pads, reduced to what a backend executes.

    The source is resized to ``resized_hw``; of that, ``window`` (always inside) is kept and put at ``offset`` =
    (top, left) on a canvas of ``canvas_hw`` filled with a constant. The window is empty, 0 x 0, where crops and pads
    leave nothing of the image.
    """

    source_hw: Size
    resized_hw: Size
    window: Window
    offset: Size
    canvas_hw: Size

    @property
    def fills(self) -> bool:
        """Whether any of the canvas is not covered by the image."""
        return (self.window.height, self.window.width) != self.canvas_hw


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the source that must be decoded to fill a placement's window, and the window's place in it.

    ``anchor`` (top, left) and ``shape`` (height, width) are integers in source pixels. ``start`` and ``end`` are the
    window's corners, (y, x) in pixels relative to the anchor, not rounded.
    """

    anchor: Size
    shape: Size
    start: tuple[float, float]
    end: tuple[float, float]


def place(definition: Definition, size_hw: Size) -> Placement:
    """Reduce the geometry of ``definition`` for a decoded image of ``size_hw``.

    Works for a definition that ``resizes_once``.
    Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
    """
    operations = list(definition.geometry)
    resized = size_hw
    if operations and isinstance(operations[0], Resize):
        resized = operations.pop(0).resized(size_hw)
    canvas, top, left = resized, 0, 0
    visible = Window(0, 0, *resized)
    for operation in operations:
        assert not isinstance(operation, Resize)
        window = operation.window(canvas)
        top, left, canvas = top + window.top, left + window.left, window.size_hw
        visible = _intersection(visible, Window(top, left, *canvas))
    if visible.height < 1 or visible.width < 1:
        return Placement(size_hw, resized, Window(0, 0, 0, 0), (0, 0), canvas)
    return Placement(size_hw, resized, visible, (visible.top - top, visible.left - left), canvas)


def mapping(definition: Definition, size_hw: Size) -> Mapping:
    """Where the points of an image of ``size_hw`` come to lie on the canvas of ``definition``.

    Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
    """
    current = size_hw
    scale, offset = [1.0, 1.0], [0.0, 0.0]
    shown = [(0.0, float(side)) for side in size_hw]
    for operation in definition.geometry:
        if isinstance(operation, Resize):
            resized = operation.resized(current)
            for axis in (0, 1):
                ratio = resized[axis] / current[axis]
                scale[axis], offset[axis] = scale[axis] * ratio, offset[axis] * ratio
                low, high = shown[axis]
                shown[axis] = low * resized[axis] / current[axis], high * resized[axis] / current[axis]
            current = resized
        else:
            window = operation.window(current)
            current = window.size_hw
            for axis, first in enumerate((window.top, window.left)):
                offset[axis] -= first
                low, high = (min(max(edge - first, 0.0), float(current[axis])) for edge in shown[axis])
                shown[axis] = low, high
    return Mapping(size_hw, current, (scale[0], scale[1]), (offset[0], offset[1]), (shown[0], shown[1]))


def part_of(placement: Placement, support: int = 1) -> Part:
    """The part of the source that a placement's window needs, with the margin that the filter reads.

    A filter reads ``support`` source pixels to each side (1 for a triangle), times the scale when it shrinks. The
    margin is one such pixel and one source pixel more, since JPEG decoders interpolate chroma from neighbours that a
    cut would take away.
    """
    anchor, shape, start, end = [], [], [], []
    window = placement.window
    for axis, (first, kept) in enumerate(((window.top, window.height), (window.left, window.width))):
        source, resized = placement.source_hw[axis], placement.resized_hw[axis]
        scale = source / resized
        begin, stop = first * scale, (first + kept) * scale
        margin = math.ceil((support + 1) * max(scale, 1.0)) + 1
        low, high = max(0, math.floor(begin) - margin), min(source, math.ceil(stop) + margin)
        anchor.append(low)
        shape.append(high - low)
        start.append(begin - low)
        end.append(stop - low)
    return Part((anchor[0], anchor[1]), (shape[0], shape[1]), (start[0], start[1]), (end[0], end[1]))


def _intersection(one: Window, other: Window) -> Window:
    top, left = max(one.top, other.top), max(one.left, other.left)
    bottom = min(one.top + one.height, other.top + other.height)
    right = min(one.left + one.width, other.left + other.width)
    return Window(top, left, bottom - top, right - left)
