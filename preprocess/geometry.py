"""Sizes, rectangles and quadrilaterals of pictures, and where the points of one come to lie on another.

Sizes in whole multiples of a side, by how many pixels or patches there are, are those of vision-language models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadImage

Size = tuple[int, int]
"""(height, width), in pixels."""
Spans = tuple[tuple[float, float], tuple[float, float]]
"""Along y and along x: from and to, in pixels from the outer corner of the first; the same number twice is nothing."""
Boxes = npt.NDArray[np.float32]
"""Rectangles, float32 (n, 4): x0, y0, x1, y1 in pixels from the outer corner of the first; a pixel is 1 wide."""
Quads = npt.NDArray[np.float32]
"""Corners of quadrilaterals, float32 (n, 4, 2): x and y likewise, clockwise from the top left one of what is inside."""
Small = Literal["keep", "together", "each"]
MOST_ELONGATED = 200
"""The longer side of a picture by its shorter one, at most, where ``within_area`` resizes it."""

_FACTOR_FOUND = 1e-5
_Floats = TypeVar("_Floats", bound=np.floating[Any])


@dataclass(frozen=True)
class Window:
    """A rectangle in pixel coordinates; ``top`` and ``left`` may be negative where it reaches outside the image."""

    top: int
    left: int
    height: int
    width: int

    @cached_property
    def spans(self) -> Spans:
        """From and to, along y and x."""
        return (self.top, self.top + self.height), (self.left, self.left + self.width)

    @cached_property
    def size_hw(self) -> Size:
        """Height and width."""
        return self.height, self.width

    @cached_property
    def slices(self) -> tuple[slice, slice]:
        """The rows and columns of an array."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


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


def proportional(size: int, side: int, scaled_side: int, rounding: str) -> int:
    """What ``side`` becomes where ``scaled_side`` becomes ``size``, rounded as ``resize.rounding`` says.

    At least 1, but 0 where *quotient_down* leaves nothing.
    """
    if rounding == "ratio":
        return max(1, round(side * (size / scaled_side)))
    if rounding == "up":
        return -(-size * side // scaled_side)
    if rounding == "quotient":
        return max(1, round(side / (scaled_side / size)))
    if rounding == "quotient_down":
        return int(side / (scaled_side / size))
    if rounding == "half_up":
        return max(1, int(side * (size / scaled_side) + 0.5))
    exact = size * side / scaled_side
    return max(1, round(exact) if rounding == "nearest" else int(exact))


def even_sides(size: int, size_hw: Size) -> Size:
    """The size of the longer side ``size``; the other is truncated, then up to an even number: Idefics3's."""
    ratio = size_hw[1] / size_hw[0]
    height, width = (int(size / ratio), size) if ratio >= 1 else (size, int(size * ratio))
    return max(1, height + height % 2 * (ratio >= 1)), max(1, width + width % 2 * (ratio < 1))


def bounded(size: int, most: int, sides: Sequence[int], rounding: str) -> tuple[int, int]:
    """The shorter and the longer of ``sides`` where the shorter becomes ``size`` and the longer at most ``most``."""
    short, long = sides
    if rounding == "detr":
        # get_size_with_aspect_ratio of transformers, whose floats decide what is truncated.
        exact = most * short / long if long / short * size > most else size
        return (short, long) if round(exact) == short else (round(exact), int(exact * long / short))
    scaled = proportional(size, long, short, rounding)
    if scaled <= most:
        return size, scaled
    # torchvision goes on from the rounded side.
    first = (size, scaled) if rounding == "truncate" else (short, long)
    return proportional(most, *first, rounding), most


def reduced(size_hw: Size, factor: int) -> Size:
    """The size of a picture that is decoded at 1/``factor`` of its own, as libjpeg rounds it."""
    return -(-size_hw[0] // factor), -(-size_hw[1] // factor)


def within_area(
    size_hw: Size,
    multiple_of: int,
    least: int,
    most: int,
    *,
    small: Small = "keep",
    frames: int = 1,
    temporal: int = 1,
) -> Size:
    """The multiples nearest to a size of which ``frames`` pictures have ``least`` to ``most`` pixels: ``smart_resize``.

    Sides are rounded, a half to the even multiple, and so is the number of frames to a multiple of ``temporal``; more
    pixels shrink by one factor and sides are rounded down, fewer grow and they are rounded up, which may pass ``most``.
    Raises ``BadImage`` in the words of transformers: beyond ``MOST_ELONGATED``, and for fewer frames than ``temporal``.
    """
    if frames < temporal:
        raise BadImage("bad_request", f"t:{frames} must be larger than temporal_factor:{temporal}")
    height, width = _grown(size_hw, multiple_of, small)
    ratio = max(height, width) / min(height, width)
    if ratio > MOST_ELONGATED:
        raise BadImage("too_many_pixels", f"absolute aspect ratio must be smaller than {MOST_ELONGATED}, got {ratio}")
    rounded = round(height / multiple_of) * multiple_of, round(width / multiple_of) * multiple_of
    pixels = round(frames / temporal) * temporal * rounded[0] * rounded[1]
    if pixels > most:
        shrunk = math.sqrt(frames * height * width / most)
        return (
            max(multiple_of, math.floor(height / shrunk / multiple_of) * multiple_of),
            max(multiple_of, math.floor(width / shrunk / multiple_of) * multiple_of),
        )
    if pixels < least:
        grown = math.sqrt(least / (frames * height * width))
        return (
            math.ceil(height * grown / multiple_of) * multiple_of,
            math.ceil(width * grown / multiple_of) * multiple_of,
        )
    return rounded


def capped(least: int, most: int, cap: int, frames: int, *, counts_frames: bool) -> int:
    """``most`` of a video of so many frames where ``cap`` bounds it too: transformers' ``cap_pixels_per_frame``.

    With ``counts_frames`` ``least`` and ``most`` are of all frames and ``cap`` is of one, and otherwise the reverse.
    """
    share = min(cap, most // frames) if counts_frames else min(most, cap // frames)
    of_frame = max(share, int(least * 1.05))
    return of_frame * frames if counts_frames else of_frame


def within_patches(size_hw: Size, patch: int, most: int) -> Size:
    """The largest multiples of ``patch`` of which ``most`` squares or fewer cover a picture: SigLIP2-NaFlex's.

    Both sides are rounded up after one factor, up to 100, which is bisected to 1e-5.
    """

    def covered(scale: float) -> Size:
        height, width = (max(1, math.ceil(side * scale / patch)) for side in size_hw)
        return height, width

    low, high = _FACTOR_FOUND / 10, 100.0
    while high - low >= _FACTOR_FOUND:
        scale = (low + high) / 2
        down, across = covered(scale)
        low, high = (scale, high) if down * across <= most else (low, scale)
    down, across = covered(low)
    return down * patch, across * patch


def _grown(size_hw: Size, least: int, small: Small) -> Size:
    """A size of which no side is shorter than ``least``, as ``resize.small`` says; rounding may leave one below."""
    height, width = size_hw
    if small == "together" and min(size_hw) < least:
        scale = max(least / height, least / width)
        return int(height * scale), int(width * scale)
    if small == "each":
        if height < least:
            height, width = least, round(width * least / height)
        if width < least:
            height, width = round(height * least / width), least
    return height, width


def quads_of(boxes: Boxes) -> Quads:
    """The quads of boxes, (n, 4): x0, y0, x1, y1."""
    return np.asarray(boxes, np.float32)[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]


def bounding_boxes(quads: Quads) -> Boxes:
    """The smallest upright boxes around quads."""
    return np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)


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


def interpolated(levels: npt.NDArray[Any], size_hw: Size) -> npt.NDArray[np.uint8]:
    """Linear interpolation between the nearest pixels, whatever the scale: what Pillow's resize cannot do.

    Centres are at half coordinates, the border is repeated outwards, and a half of a level is rounded up.
    """
    for axis, count in enumerate(size_hw):
        side = levels.shape[axis]
        places = (np.arange(count) + 0.5) * side / count - 0.5
        below = np.floor(places).astype(np.int64)
        share = (places - below).reshape([-1 if dimension == axis else 1 for dimension in range(levels.ndim)])
        first, second = (
            np.take(levels, np.clip(at, 0, side - 1), axis).astype(np.float64) for at in (below, below + 1)
        )
        levels = first + share * (second - first)
    rounded: npt.NDArray[np.uint8] = np.floor(levels + 0.5).astype(np.uint8)
    return rounded
