"""What belongs to a picture, moved as it is: boxes, quads, points and masks, and what of them is no longer seen.

The rule is the same for all: of a target its share of area is what counts that is seen on the canvas. One of which less
than ``min_visible``, or nothing, is seen is no target any more. What an ``erase`` hides counts as seen.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Boxes, Mapping, Quads, Size, Window, clipped, visible_share
from onestream.preprocess.projection import Located, Projection, seen
from onestream.preprocess.quads import quads_of
from onestream.preprocess.variation import Variation, variation_mapping

_Kept = npt.NDArray[np.bool_]
_Level = TypeVar("_Level", bound=np.generic)
_ROUNDING = 1e-4
"""Of a share of area: corners on the canvas are float32, whose steps at 1,000 are 6e-5 pixels."""


def visible_boxes(boxes: Boxes, located: Located, *, min_visible: float) -> tuple[Boxes, _Kept]:
    """Boxes of a picture on the canvas, (k, 4), and which of the given ones, (n,), they are.

    Each is the smallest upright box around what is seen of it.
    """
    if isinstance(located, Mapping):
        moved = located.to_canvas(boxes)
        kept = _enough(visible_share(moved, Window(0, 0, *located.canvas_hw)), min_visible)
        return clipped(moved[kept], located.canvas_hw), kept
    around, shares = seen(quads_of(boxes), located)
    kept = _enough(shares, min_visible)
    return around[kept], kept


def visible_quads(quads: Quads, located: Located, *, min_visible: float) -> tuple[Quads, _Kept]:
    """Convex quads of a picture on the canvas, corner by corner, (k, 4, 2), and which of the given, (n,), they are.

    Those that are partly seen reach beyond the canvas.
    """
    kept = _enough(seen(quads, _projection(located))[1], min_visible)
    return located.quads_to_canvas(quads[kept]), kept


def visible_points(points: npt.NDArray[np.float32], located: Located) -> tuple[npt.NDArray[np.float32], _Kept]:
    """Points (n, 2), x and y in a picture, on the canvas, and which of them are seen there, (n,)."""
    moved = located.points_to_canvas(points.astype(np.float64))
    height, width = located.canvas_hw
    with np.errstate(invalid="ignore"):
        inside = ((moved >= 0) & (moved <= (width, height))).all(axis=1)
    return moved.astype(np.float32), inside


def moved_mask(
    mask: npt.NDArray[_Level], definition: Definition, variation: Variation, *, border: int = 0
) -> npt.NDArray[_Level]:
    """A mask of the upright picture, (height, width) of classes, on the canvas of a variation.

    Each pixel has the class of the one in which its centre lies, and ``border`` beyond the picture. Raises as
    ``canvas_of``.
    """
    size_hw: Size = (mask.shape[0], mask.shape[1])
    located = variation_mapping(definition, variation, size_hw)
    rows, columns = np.mgrid[: located.canvas_hw[0], : located.canvas_hw[1]] + 0.5
    if variation.warp is not None:
        across, down = variation.warp.displacements(located.canvas_hw)
        rows, columns = rows + down, columns + across
    places = np.floor(located.points_to_source(np.stack([columns, rows], axis=-1))).astype(np.int64)
    x, y = places[..., 0], places[..., 1]
    inside = (x >= 0) & (y >= 0) & (x < size_hw[1]) & (y < size_hw[0])
    moved = np.full(located.canvas_hw, border, mask.dtype)
    moved[inside] = mask[y[inside], x[inside]]
    return moved


def _enough(shares: npt.NDArray[np.float64], min_visible: float) -> _Kept:
    kept: _Kept = (shares > 0) & (shares >= min_visible - _ROUNDING)
    return kept


def _projection(located: Located) -> Projection:
    """A mapping along the axes as the transform that it is."""
    if isinstance(located, Projection):
        return located
    height, width = located.canvas_hw
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float64)
    one, two, three, four = ((x, y) for x, y in located.points_to_source(corners).tolist())
    return Projection(located.source_hw, located.canvas_hw, (one, two, three, four))
