"""What belongs to a picture, moved as it is: boxes, quads, keypoints and masks, and what of them is no longer seen.

The rule is the same for all: of a target its share of area is what counts that is seen on the canvas. One of which less
than ``min_visible``, or nothing, is seen is no target any more. What an ``erase`` hides counts as seen, and what a crop
of the definition cuts off is not seen where a pad follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Boxes, Mapping, Quads, Size, quads_of, visible_share, within
from onestream.preprocess.plan import Planner
from onestream.preprocess.projection import Located, Projection, seen
from onestream.preprocess.variation import Variation, Warp, variation_transform

_Kept = npt.NDArray[np.bool_]
_Level = TypeVar("_Level", bound=np.generic)
_ROUNDING = 1e-4
"""Of a share of area: corners on the canvas are float32, whose steps at 1,000 are 6e-5 pixels."""
_TIE = 2.0**-20
"""Of a pixel: a centre that lies on an edge belongs to what follows it, whatever floats make of its place."""


def visible_boxes(boxes: Boxes, located: Located, *, min_visible: float) -> tuple[Boxes, _Kept]:
    """Boxes of a picture on the canvas, (k, 4), and which of the given ones, (n,), they are.

    Each is the smallest upright box around what is seen of it.
    """
    if isinstance(located, Mapping):
        moved = located.to_canvas(boxes)
        kept = _enough(visible_share(moved, located.spans), min_visible)
        return within(moved[kept], located.spans), kept
    around, shares = seen(quads_of(boxes), located)
    kept = _enough(shares, min_visible)
    return around[kept], kept


def visible_quads(quads: Quads, located: Located, *, min_visible: float) -> tuple[Quads, _Kept]:
    """Convex quads of a picture on the canvas, corner by corner, (k, 4, 2), and which of the given, (n,), they are.

    Those that are partly seen reach beyond the canvas.
    """
    shows_any = all(low < high for low, high in located.spans)
    shares = seen(quads, _projection(located))[1] if shows_any else np.zeros(len(quads))
    kept = _enough(shares, min_visible)
    return located.quads_to_canvas(quads[kept]), kept


def visible_points(points: npt.NDArray[np.float32], located: Located) -> tuple[npt.NDArray[np.float32], _Kept]:
    """Points (n, 2), x and y in a picture, on the canvas, and which of them are seen there, (n,)."""
    moved = located.points_to_canvas(points.astype(np.float64))
    first, last = np.array(located.spans).T[:, ::-1]
    with np.errstate(invalid="ignore"):
        inside = ((moved >= first - _TIE) & (moved <= last + _TIE) & (first < last)).all(axis=1)
    points = moved.astype(np.float32)
    # One on the far border belongs to the last pixel: a map of the canvas's size has a place for it.
    far = np.nextafter(last.astype(np.float32), np.float32(0))
    points[inside] = np.clip(points[inside], first.astype(np.float32), far)
    return points, inside


def visible_keypoints(
    keypoints: npt.NDArray[np.float32], located: Located, *, flip_pairs: Sequence[tuple[int, int]] = ()
) -> npt.NDArray[np.float32]:
    """Keypoints of a picture's objects on the canvas, as many, float32 (n, k, 3): x, y and COCO's visibility.

    That is 0 of one that is not labelled, 1 of a hidden and 2 of a visible one. One that the canvas does not show is no
    longer labelled, and of those all three numbers are 0. Where the canvas shows the picture mirrored, the two of each
    of ``flip_pairs``, numbers from 0 to k - 1, change places: the left hand is then a right one.
    """
    points, inside = visible_points(keypoints[..., :2].reshape(-1, 2), located)
    moved: npt.NDArray[np.float32] = np.concatenate(
        [points.reshape(*keypoints.shape[:2], 2), keypoints[..., 2:]], axis=2
    )
    moved[~inside.reshape(keypoints.shape[:2]) | (keypoints[..., 2] == 0)] = 0
    if located.mirrored:
        for one, other in flip_pairs:
            moved[:, [one, other]] = moved[:, [other, one]]
    return moved


def moved_mask(
    mask: npt.NDArray[_Level], definition: Definition, variation: Variation | None = None, *, border: int = 0
) -> npt.NDArray[_Level]:
    """A mask of the upright picture, (height, width) of classes, on the canvas of a variation, or of the definition.

    Each pixel has the class of the one in which its centre lies, and ``border`` where nothing of the picture is. Raises
    as ``canvas_of`` of a variation, and ``BadImage`` where the definition cannot be applied.
    """
    size_hw: Size = (mask.shape[0], mask.shape[1])
    located: Located
    if variation is not None:
        located = variation_transform(definition, variation, size_hw)
        x, y = _in_picture(located, variation.warp)
    else:
        located = Planner(definition).mapping(size_hw)
        x, y = _in_picture(located, None)
    centres_hw = [np.arange(side) + (0.5 + _TIE) for side in located.canvas_hw]
    rows, columns = (
        (low <= centres) & (centres < high) for centres, (low, high) in zip(centres_hw, located.spans, strict=True)
    )
    seen = _inside(x, y, size_hw) & rows[:, None] & columns
    moved = np.full(located.canvas_hw, border, mask.dtype)
    np.copyto(moved, mask[y.clip(0, size_hw[0] - 1), x.clip(0, size_hw[1] - 1)], where=seen)
    return moved


def _in_picture(located: Located, warp: Warp | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The column and the row of a picture in which each of a canvas's pixels lies: arrays that fit its shape."""
    rows, columns = (np.arange(side) + 0.5 for side in located.canvas_hw)
    x, y = columns[None, :], rows[:, None]
    if isinstance(located, Mapping):
        # Each axis by itself takes a small part of the time.
        x = located.points_to_source(np.stack([x, np.zeros_like(x)], axis=-1))[..., 0]
        y = located.points_to_source(np.stack([np.zeros_like(y), y], axis=-1))[..., 1]
    else:
        if warp is not None:
            across, down = warp.displacements(located.canvas_hw)
            x, y = x + across, y + down
        places = located.points_to_source(np.stack(np.broadcast_arrays(x, y), axis=-1))
        x, y = places[..., 0], places[..., 1]
    # Far outside is as good as beyond the horizon, which is no number: fmax then takes -1.
    column, row = (
        np.floor(np.fmin(np.fmax(place, -1), side) + _TIE).astype(np.int64)
        for place, side in zip((x, y), located.source_hw[::-1], strict=True)
    )
    return column, row


def _inside(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64], size_hw: Size) -> npt.NDArray[np.bool_]:
    inside: npt.NDArray[np.bool_] = (x >= 0) & (y >= 0) & (x < size_hw[1]) & (y < size_hw[0])
    return inside


def _enough(shares: npt.NDArray[np.float64], min_visible: float) -> _Kept:
    kept: _Kept = (shares > 0) & (shares >= min_visible - _ROUNDING)
    return kept


def _projection(located: Located) -> Projection:
    """A mapping along the axes as the transform of what it shows of the picture."""
    if isinstance(located, Projection):
        return located
    (top, bottom), (left, right) = located.spans
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    one, two, three, four = ((x, y) for x, y in located.points_to_source(corners).tolist())
    return Projection(located.source_hw, located.canvas_hw, (one, two, three, four))
