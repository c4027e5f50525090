"""Integer sizes and windows, computed once for every backend.

Sizes are (height, width) in pixels. The rounding rules are torchvision's: the proportional side is truncated
(``torchvision.transforms.functional._compute_resized_output_size``), the crop offset is
``int(round((in - out) / 2.0))`` with Python's half-to-even rounding (``center_crop``), and an
image smaller than its crop is padded first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.operations import CenterCrop, Geometric, Pad, Resize

Size = tuple[int, int]
Spans = tuple[tuple[float, float], tuple[float, float]]
"""Along y and along x: from and to, in pixels from the outer corner of the first; the same number twice is nothing."""
Boxes = npt.NDArray[np.float32]
"""Rectangles, float32 (n, 4): x0, y0, x1, y1 in pixels from the outer corner of the first; a pixel is 1 wide."""
Quads = npt.NDArray[np.float32]
"""Corners of quadrilaterals, float32 (n, 4, 2): x and y likewise, clockwise from the top left one of what is inside."""
_Floats = TypeVar("_Floats", bound=np.floating[Any])


def resized_size(operation: Resize, size_hw: Size) -> Size:
    """Size after a resize of an image of ``size_hw``; every side is at least 1."""
    height, width = _scaled_size(operation, size_hw)
    if not operation.enlarge and (height > size_hw[0] or width > size_hw[1]):
        height, width = size_hw
    multiple = operation.multiple_of
    return max(1, round(height / multiple)) * multiple, max(1, round(width / multiple)) * multiple


def _scaled_size(operation: Resize, size_hw: Size) -> Size:
    height, width = size_hw
    size = operation.size
    if operation.mode == "exact":
        assert isinstance(size, tuple)
        return size
    if operation.mode == "fit":
        assert isinstance(size, tuple)
        # The side that reaches the box first is exact; integers decide, so no ratio is rounded.
        if height * size[1] >= width * size[0]:
            return size[0], _proportional(operation, size[0], width, height)
        return _proportional(operation, size[1], height, width), size[1]
    if operation.mode == "height":
        assert isinstance(size, tuple)
        return size[0], min(size[1], _proportional(operation, size[0], width, height))
    assert isinstance(size, int)
    height_is_scaled_side = (height <= width) == (operation.mode == "shorter")
    if height == width:
        return size, size
    if height_is_scaled_side:
        return size, _proportional(operation, size, width, height)
    return _proportional(operation, size, height, width), size


def _proportional(operation: Resize, size: int, side: int, scaled_side: int) -> int:
    if operation.rounding == "ratio":
        return max(1, round(side * (size / scaled_side)))
    if operation.rounding == "up":
        return -(-size * side // scaled_side)
    exact = size * side / scaled_side
    return max(1, int(exact) if operation.rounding == "truncate" else round(exact))


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle in pixel coordinates; ``top`` and ``left`` may be negative where it reaches outside the image."""

    top: int
    left: int
    height: int
    width: int

    @property
    def spans(self) -> Spans:
        """From and to, along y and x."""
        return (self.top, self.top + self.height), (self.left, self.left + self.width)


def crop_window(operation: CenterCrop | Pad, size_hw: Size) -> Window:
    """The part of an image of ``size_hw`` that a crop or pad keeps, in the image's own coordinates.

    Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
    """
    if isinstance(operation, CenterCrop):
        height, width = operation.size
        top, left = _crop_offset(operation, size_hw[0], height), _crop_offset(operation, size_hw[1], width)
        return Window(top, left, height, width)
    for axis, side in enumerate(size_hw):
        if side > operation.size[axis] and not operation.multiple_of[axis]:
            raise BadImage(
                "too_many_pixels",
                f"the definition pads to {operation.size[1]}x{operation.size[0]} pixels, which cannot hold the "
                f"{size_hw[1]}x{size_hw[0]} of this image after the operations before",
            )
    height, width = (operation.padded(axis, side) for axis, side in enumerate(size_hw))
    if operation.align == "top_left":
        return Window(0, 0, height, width)
    return Window(-((height - size_hw[0]) // 2), -((width - size_hw[1]) // 2), height, width)


def free_sizes(definition: Definition, size_hw: Size) -> list[Size]:
    """The sizes on the way of an image of ``size_hw`` that follow from it: after a resize, and a pad to a multiple.

    Limits judge these (``Limits.check_resized``). Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
    """
    found, current = [], size_hw
    for operation in definition.geometry:
        if isinstance(operation, Resize):
            current = resized_size(operation, current)
            found.append(current)
        else:
            window = crop_window(operation, current)
            current = (window.height, window.width)
            if isinstance(operation, Pad) and any(operation.multiple_of):
                found.append(current)
    return found


def _crop_offset(operation: CenterCrop, side: int, cropped: int) -> int:
    if cropped > side:
        # torchvision pads (cropped - side) // 2 in front and then crops at offset 0.
        return -((cropped - side) // 2)
    return (side - cropped) // 2 if operation.rounding == "truncate" else round((side - cropped) / 2.0)


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

    Works for at most one resize, before any crop or pad; ``single_resize`` tells whether a definition is of that kind.
    Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
    """
    operations = list(definition.geometry)
    resized = size_hw
    if operations and isinstance(operations[0], Resize):
        resized = resized_size(operations[0], size_hw)
        del operations[0]
    canvas, top, left = resized, 0, 0
    visible = Window(0, 0, *resized)
    for operation in operations:
        assert not isinstance(operation, Resize)
        window = crop_window(operation, canvas)
        top, left, canvas = top + window.top, left + window.left, (window.height, window.width)
        visible = _intersection(visible, Window(top, left, *canvas))
    if visible.height < 1 or visible.width < 1:
        return Placement(size_hw, resized, Window(0, 0, 0, 0), (0, 0), canvas)
    return Placement(size_hw, resized, visible, (visible.top - top, visible.left - left), canvas)


@dataclass(frozen=True, slots=True)
class Mapping:
    """Where points of an image come to lie on the canvas: along each axis ``canvas = source * scale + offset``.

    ``scale`` and ``offset`` are (y, x), in pixels from the outer corner of the first; a negative ``scale`` mirrors. The
    two scales differ even where the aspect ratio is kept, since sides are whole pixels. ``source_hw`` is the image
    after its EXIF orientation. ``shown`` is where the canvas shows the image, in its pixels; None means everywhere.
    Beside it a crop or a pad has filled the canvas, also where a crop has cut points of the image off before.
    """

    source_hw: Size
    canvas_hw: Size
    scale: tuple[float, float]
    offset: tuple[float, float]
    shown: Spans | None = None

    @property
    def spans(self) -> Spans:
        """Where the canvas shows the image, in its pixels."""
        return self.shown or Window(0, 0, *self.canvas_hw).spans

    @property
    def mirrored(self) -> bool:
        """Whether the canvas shows the image as a mirror does; twice mirrored it is only turned."""
        return self.scale[0] * self.scale[1] < 0

    def to_canvas(self, boxes: Boxes) -> Boxes:
        """Boxes of the image on the canvas; they may reach beyond it."""
        points = boxes.astype(np.float64) * self._xyxy(self.scale) + self._xyxy(self.offset)
        return self._ordered(points)

    def to_source(self, boxes: Boxes) -> Boxes:
        """Boxes on the canvas in the image; they may reach beyond it."""
        points = (boxes.astype(np.float64) - self._xyxy(self.offset)) / self._xyxy(self.scale)
        return self._ordered(points)

    def quads_to_canvas(self, quads: Quads) -> Quads:
        """Quads of the image on the canvas, corner by corner: one that is mirrored is no longer clockwise."""
        points = quads.astype(np.float64) * self._xyxy(self.scale)[:2] + self._xyxy(self.offset)[:2]
        return np.asarray(points, np.float32)

    def quads_to_source(self, quads: Quads) -> Quads:
        """Quads on the canvas in the image, corner by corner."""
        return np.asarray(self.points_to_source(quads.astype(np.float64)), np.float32)

    def points_to_canvas(self, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Points (..., 2), x and y in the image, on the canvas; they may lie outside it."""
        moved: npt.NDArray[np.float64] = points * np.array(self.scale[::-1]) + np.array(self.offset[::-1])
        return moved

    def points_to_source(self, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Points (..., 2), x and y on the canvas, in the image; they may lie outside it."""
        moved: npt.NDArray[np.float64] = (points - np.array(self.offset[::-1])) / np.array(self.scale[::-1])
        return moved

    def _ordered(self, boxes: npt.NDArray[np.float64]) -> Boxes:
        """With the lower edge first, which a mirror turns round."""
        flipped = [axis for axis in (0, 1) if self.scale[1 - axis] < 0]
        for axis in flipped:
            boxes[..., [axis, axis + 2]] = boxes[..., [axis + 2, axis]]
        return boxes.astype(np.float32)

    @staticmethod
    def _xyxy(yx: tuple[float, float]) -> npt.NDArray[np.float64]:
        return np.array([yx[1], yx[0], yx[1], yx[0]])


def mapping(definition: Definition, size_hw: Size) -> Mapping:
    """Where the points of an image of ``size_hw`` come to lie on the canvas of ``definition``.

    Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
    """
    current = size_hw
    scale, offset = [1.0, 1.0], [0.0, 0.0]
    shown = [(0.0, float(side)) for side in size_hw]
    for operation in definition.geometry:
        if isinstance(operation, Resize):
            resized = resized_size(operation, current)
            for axis in (0, 1):
                ratio = resized[axis] / current[axis]
                scale[axis], offset[axis] = scale[axis] * ratio, offset[axis] * ratio
                low, high = shown[axis]
                shown[axis] = low * resized[axis] / current[axis], high * resized[axis] / current[axis]
            current = resized
        else:
            window = crop_window(operation, current)
            current = (window.height, window.width)
            for axis, first in enumerate((window.top, window.left)):
                offset[axis] -= first
                low, high = (min(max(edge - first, 0.0), float(current[axis])) for edge in shown[axis])
                shown[axis] = low, high
    return Mapping(size_hw, current, (scale[0], scale[1]), (offset[0], offset[1]), (shown[0], shown[1]))


def clipped(boxes: Boxes, size_hw: Size) -> Boxes:
    """Boxes cut at the borders of an image of ``size_hw``."""
    return within(boxes, Window(0, 0, *size_hw).spans)


def within(boxes: npt.NDArray[_Floats], spans: Spans) -> npt.NDArray[_Floats]:
    """Boxes cut at the edges of a rectangle."""
    first, last = np.array(spans, boxes.dtype).T[:, ::-1]
    cut: npt.NDArray[_Floats] = np.clip(boxes, np.tile(first, 2), np.tile(last, 2))
    return cut


def visible_share(boxes: Boxes, spans: Spans) -> npt.NDArray[np.float64]:
    """The share of each box's area that lies in a rectangle, 0 to 1, float64 (n,); 0 of a box without area."""
    corners = boxes.astype(np.float64)
    areas, left = ((one[:, 2] - one[:, 0]) * (one[:, 3] - one[:, 1]) for one in (corners, within(corners, spans)))
    return np.divide(left, areas, out=np.zeros(len(boxes)), where=areas > 0)


def single_resize(operations: tuple[Geometric, ...]) -> bool:
    """Whether the geometry is at most one resize, followed by crops and pads only."""
    return not any(isinstance(operation, Resize) for operation in operations[1:])


def always_visible(operations: tuple[Geometric, ...]) -> bool:
    """Whether some of the image certainly stays on the canvas: one centre crop at most, before any pad.

    A crop of one pixel after a pad may miss an image of one pixel, since the two round the odd pixel differently.
    """
    shapes = [type(operation) for operation in operations if not isinstance(operation, Resize)]
    return CenterCrop not in shapes[1:]


def fill_values(definition: Definition) -> tuple[int, ...]:
    """The distinct constants with which a definition may fill, in order of appearance."""
    found: list[int] = []
    smallest = 1
    for operation in definition.geometry:
        if isinstance(operation, CenterCrop) and max(operation.size) > smallest:
            found.append(0)
        if isinstance(operation, Pad):
            found.append(operation.value)
        smallest = _smallest_side(operation)
    return tuple(dict.fromkeys(found))


def _smallest_side(operation: Geometric) -> int:
    """A lower bound of both sides after an operation, whatever the image."""
    if not isinstance(operation, Resize) or operation.mode == "exact":
        assert isinstance(operation.size, tuple)
        return min(operation.size)
    if operation.mode != "shorter" or not operation.enlarge:
        return 1
    assert isinstance(operation.size, int)
    return operation.size


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
