"""One random variation of an image, as training sees it: where it comes to lie, and what happens to its levels.

A variation takes the place of a definition's geometry: four points of the image come to lie at the corners of the
definition's canvas, by one perspective transform that is sampled once, and changes of levels follow; everything else
stays the definition's. It is a value, drawn outside (``training.augmentation``), so that every backend executes the
same one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator

from onestream.preprocess.changes import AnyChange, Factors, Linear
from onestream.preprocess.cpu.rectify_weights import bicubic
from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Mapping, Size, Window
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Level, Side
from onestream.preprocess.projection import Corners, Located, Projection

_STEPS = 1 << 16
"""Corners are multiples of one part in this many of a pixel: so a box has whole numbers however it was computed.

So are speeds.
"""


_Row = tuple[tuple[float, float], ...]


class Warp(BaseModel):
    """Where each pixel of a canvas looks: a frozen value, equal by content, that is written as JSON.

    ``moved`` are rows of (x, y), in pixels of the canvas: the displacement at the points of an even grid, from the
    canvas's top left corner to its bottom right one. Between them it is Keys's cubic with a = -0.5, along y and then
    along x; beyond the last point that is repeated. Raises ``ValidationError``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    moved: tuple[_Row, ...]

    @field_validator("moved")
    @classmethod
    def _is_a_grid(cls, moved: tuple[_Row, ...]) -> tuple[_Row, ...]:
        if len(moved) < 2 or len({len(row) for row in moved}) != 1 or len(moved[0]) < 2:
            raise ValueError(f"must be 2 rows or more of 2 points or more, got rows of {[len(row) for row in moved]}")
        return moved

    def displacements(self, canvas_hw: Size) -> npt.NDArray[np.float64]:
        """What is added to x and to y of each pixel before it is looked up in the picture, (2, height, width)."""
        grid = np.array(self.moved)
        for axis, count in enumerate(canvas_hw):
            taps, weights = _neighbours(count, grid.shape[axis])
            shape = [-1 if one == axis else 1 for one in range(3)]
            # One product after the other: the same bits on every machine.
            parts = [np.take(grid, taps[:, tap], axis) * weights[:, tap].reshape(shape) for tap in range(4)]
            grid = ((parts[0] + parts[1]) + parts[2]) + parts[3]
        return np.ascontiguousarray(grid.transpose(2, 0, 1))

    def __str__(self) -> str:
        most = np.abs(self.moved).max()
        return f"warp of {len(self.moved[0])}x{len(self.moved)} points by up to {most:.3g} px"


def _neighbours(count: int, points: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The four points around each of ``count`` pixels' centres along an axis, and their weights, (count, 4) each."""
    places = (np.arange(count) + 0.5) * (points - 1) / count
    taps = np.floor(places).astype(np.int64)[:, None] + np.arange(-1, 3)
    return np.clip(taps, 0, points - 1), bicubic(taps - places[:, None])


class Variation(BaseModel):
    """The change that augmentation makes to one image: a frozen value, equal by content, that is written as JSON.

    ``corners`` are the points of the upright image, (x, y) in its pixels from the outer corner, that come to lie at the
    canvas's top left, top right, bottom right and bottom left corner; they are rounded to 2^-16 pixels and make a
    convex quadrilateral, mirrored or not. What the canvas shows beyond the image has the level ``fill`` in every
    channel; None repeats the border outwards. ``changes`` are made to the canvas's levels, one after the other.
    ``canvas_hw`` is the canvas's (height, width) where that is a rectangle of a collage; None is the definition's
    output. ``warp`` displaces the pixels of the canvas before the transform. Raises ``ValidationError``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    corners: Corners
    fill: Level | None = 0
    changes: tuple[AnyChange, ...] = ()
    canvas_hw: tuple[Side, Side] | None = None
    warp: Warp | None = None

    @classmethod
    def of_box(
        cls, box: Window, *, flip: bool = False, upside_down: bool = False, changes: tuple[AnyChange, ...] = ()
    ) -> Variation:
        """A box of the image, resized to the canvas and mirrored: left to right by ``flip``."""
        left, right = (box.left, box.left + box.width)[:: -1 if flip else 1]
        top, bottom = (box.top, box.top + box.height)[:: -1 if upside_down else 1]
        return cls(corners=((left, top), (right, top), (right, bottom), (left, bottom)), changes=changes)

    @field_validator("corners")
    @classmethod
    def _are_convex(cls, corners: Corners) -> Corners:
        one, two, three, four = rounded = [(round(x * _STEPS) / _STEPS, round(y * _STEPS) / _STEPS) for x, y in corners]
        # To which side it turns at each corner: the cross product of the edges before and after.
        turns = [
            (x1 - x0) * (y2 - y1) - (y1 - y0) * (x2 - x1)
            for (x0, y0), (x1, y1), (x2, y2) in zip(
                rounded, (two, three, four, one), (three, four, one, two), strict=True
            )
        ]
        if not (all(turn > 0 for turn in turns) or all(turn < 0 for turn in turns)):
            raise ValueError(f"corners must make a convex quadrilateral, got {corners}")
        return one, two, three, four

    @property
    def box(self) -> Window | None:
        """The box of whole pixels that comes to fill the canvas, mirrored or not; None where it is no such box."""
        (left, top), (right, other_top), (other_right, bottom), (other_left, other_bottom) = self.corners
        upright = (left, right, top, bottom) == (other_left, other_right, other_top, other_bottom)
        if self.warp or not upright or not all(value.is_integer() for value in (left, right, top, bottom)):
            return None
        first, last = (min(top, bottom), min(left, right)), (max(top, bottom), max(left, right))
        return Window(int(first[0]), int(first[1]), int(last[0] - first[0]), int(last[1] - first[1]))

    @property
    def flip(self) -> bool:
        """Of a box: whether it is mirrored left to right."""
        return self.corners[1][0] < self.corners[0][0]

    @property
    def upside_down(self) -> bool:
        """Of a box: whether it is mirrored top to bottom."""
        return self.corners[3][1] < self.corners[0][1]

    @property
    def color(self) -> Factors | None:
        """The factors of the only change where that is a linear one, float32; see ``changes.Linear``."""
        return self.changes[0].array if len(self.changes) == 1 and isinstance(self.changes[0], Linear) else None

    def canvas(self, definition: Definition) -> Size:
        """The canvas's (height, width). Raises as ``canvas_of``."""
        return canvas_of(definition) if self.canvas_hw is None else self.canvas_hw

    def keeps(self, size_hw: Size) -> bool:
        """Whether it leaves every pixel of an image of ``size_hw`` where it is, on a canvas of that size."""
        return self.box == Window(0, 0, *size_hw) and not self.flip and not self.upside_down

    def box_in(self, size_hw: Size) -> Window | None:
        """``box`` where it lies in an image of ``size_hw``."""
        box = self.box
        if box is None or box.top < 0 or box.left < 0:
            return None
        return box if box.top + box.height <= size_hw[0] and box.left + box.width <= size_hw[1] else None

    def __str__(self) -> str:
        box = self.box
        if box is None:
            shown = "corners " + " ".join(f"({x:.4g}, {y:.4g})" for x, y in self.corners)
        else:
            shown = f"box {box.width}x{box.height} at ({box.left}, {box.top})"
            shown += ", flipped" * self.flip + ", upside down" * self.upside_down
        warp = () if self.warp is None else (self.warp,)
        return "; ".join([shown, *(str(change) for change in (*warp, *self.changes))])


Vary = Callable[[Size], Variation]
"""Gives the variation of an image of (height, width) pixels, which is known once its header was read."""


def given(variation: Variation, _size_hw: Size) -> Variation:
    """What a ``Vary`` gives whose variation is drawn already; for ``functools.partial``."""
    return variation


class Timing(BaseModel):
    """When the frames of a clip are taken: a frozen value, equal by content, that is written as JSON.

    As if the video ran ``speed`` times as fast, which is rounded to 2^-16. ``start`` is where the clip begins, from 0,
    its ``start_frame``, to 1, the last frame from which it needs no padding. ``lost`` are places in the clip, from 1
    on and ascending: the frame there is lost, and the one before it is shown once more. Raises ``ValidationError``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    speed: float = Field(default=1.0, gt=0)
    start: float = Field(default=0.0, ge=0, le=1)
    lost: tuple[int, ...] = ()

    @field_validator("speed")
    @classmethod
    def _is_rounded(cls, speed: float) -> float:
        return max(1, round(speed * _STEPS)) / _STEPS

    @field_validator("lost")
    @classmethod
    def _ascends(cls, lost: tuple[int, ...]) -> tuple[int, ...]:
        if any(one >= other for one, other in pairwise((0, *lost))):
            raise ValueError(f"lost must be places from 1 on, ascending, got {list(lost)}")
        return lost

    def __str__(self) -> str:
        start = f"; start {self.start:.3g}" if self.start else ""
        return f"speed {self.speed:.3g}{start}" + (f"; lost {', '.join(map(str, self.lost))}" if self.lost else "")


AS_FILMED = Timing()
"""The times of the video itself."""


def canvas_of(definition: Definition) -> Size:
    """The (height, width) to which a variation is resized.

    Raises ``ValueError`` where the definition's output size depends on the image.
    """
    height, width = definition.output_spec.size_hw
    if height is None or width is None:
        raise ValueError("the definition's output size depends on the image; end it with center_crop, pad or letterbox")
    return height, width


def resize_of(definition: Definition, canvas_hw: Size) -> Resize:
    """How the box of a variation is brought to a canvas: as the definition's first resize filters.

    Without a resize in the definition it is antialiased bilinear.
    """
    first = definition.resize
    if first is None:
        return Resize(mode="exact", size=canvas_hw)
    return Resize(
        mode="exact", size=canvas_hw, filter=first.filter, antialias=first.antialias, arithmetic=first.arithmetic
    )


def variation_mapping(definition: Definition, variation: Variation, size_hw: Size) -> Located:
    """Where the points of an image of ``size_hw`` come to lie on the canvas of a variation.

    Raises as ``canvas_of``, and ``ValueError`` for a variation with a warp: nothing but masks follows one.
    """
    if variation.warp is not None:
        raise ValueError(f"points cannot follow a {variation.warp}; only masks do (moved_mask)")
    return variation_transform(definition, variation, size_hw)


def variation_transform(definition: Definition, variation: Variation, size_hw: Size) -> Located:
    """The same but for a warp, which displaces the canvas's pixels before they are looked up by this transform.

    Raises as ``canvas_of``.
    """
    canvas, box = variation.canvas(definition), variation.box
    if box is None:
        return Projection(size_hw, canvas, variation.corners)
    rows, columns = canvas[0] / box.height, canvas[1] / box.width
    scale, offset = [rows, columns], [-box.top * rows, -box.left * columns]
    for axis, mirrored in enumerate((variation.upside_down, variation.flip)):
        if mirrored:
            scale[axis], offset[axis] = -scale[axis], canvas[axis] - offset[axis]
    return Mapping(size_hw, canvas, (scale[0], scale[1]), (offset[0], offset[1]))
