"""Regions of a picture: quadrilaterals, which of them a stage takes, and what is cut of each.

A region is a *quad*: four corners, x and y in pixels of the upright picture from its outer corner (a pixel is 1 wide),
clockwise from the top left corner of what is in it. A box is the quad of its corners.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Quads, Size, bounding_boxes, quads_of
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import MAX_SIDE_OF_OPERATION, Region
from onestream.preprocess.plan import Planner

_Points = npt.NDArray[np.float64]

MAX_REGION_SIDE = MAX_SIDE_OF_OPERATION
"""The longest side of a rectified region, in pixels: no operation makes a longer one."""
_MOST_PICTURES = 4
"""Pixels of all regions of a picture, in largest pictures: of 25 million each they take some seconds to rectify."""
MOST_SAMPLE_PIXELS = 30_000_000
"""Of a picture's samples for a stage: twice a page of 500 lines of 48x640, 48 s of a core at 25 ms for 48x320."""
_LEAST_SINE = 0.01
"""Of the angle at a corner, about half a degree: beyond, four corners are nearly a line."""


def clipped_quads(quads: Quads, size_hw: Size) -> Quads:
    """Quads whose corners outside a picture of ``size_hw`` are moved to its border."""
    return np.clip(quads, 0, np.array(size_hw[::-1], np.float32))


def turned(quads: Quads, quarters: int | npt.NDArray[np.integer[Any]]) -> Quads:
    """The same areas, whose contents are seen turned by so many quarters counterclockwise, as by ``numpy.rot90``."""
    order = (np.arange(4) + np.asarray(quarters)[..., None]) % 4
    return np.take_along_axis(quads, np.broadcast_to(order, quads.shape[:2])[..., None], axis=1)


@dataclass(frozen=True, slots=True)
class Cuts:
    """What is cut of a picture for each of n regions.

    ``quads``: the corners of what is cut, with its margin, in whole pixels where it is a box, the top left one of the
    sample first. ``sizes``, int64 (n, 2): height and width in pixels of the rectangle that it becomes; both are 0 where
    nothing can be cut. ``turned``, (n,): whether it was turned by a quarter to be upright. ``shorter_sides``, float64
    (n,): of the region without its margin. ``too_large``, (n,): whether that alone is why it cannot be cut.
    """

    quads: Quads
    sizes: npt.NDArray[np.int64]
    turned: npt.NDArray[np.bool_]
    shorter_sides: _Points
    too_large: npt.NDArray[np.bool_]

    @property
    def windows(self) -> npt.NDArray[np.int64]:
        """The whole pixels of boxes, (n, 4): left, top, right, bottom."""
        return bounding_boxes(self.quads).astype(np.int64)

    @property
    def quarters(self) -> npt.NDArray[np.int64]:
        """Of boxes, by how many quarters their windows are turned, as by ``numpy.rot90``, (n,)."""
        first_is_left, first_is_top = (self.quads[:, 0] == self.quads.min(axis=1)).T
        return np.where(first_is_top, np.where(first_is_left, 0, 1), np.where(first_is_left, 3, 2))

    @property
    def possible(self) -> npt.NDArray[np.bool_]:
        """Which regions can be cut, (n,)."""
        return self.sizes[:, 0] > 0


def cuts(region: Region, quads: Quads, size_hw: Size, *, limits: Limits) -> Cuts:
    """What ``region`` cuts of a picture of ``size_hw`` for each quad.

    A *box* is the bounding box of the quad, with the margin; its edges are rounded to whole pixels (``floor(x + 0.5)``)
    and cut at the picture's borders, and it holds at least the pixel at its middle. It is turned by whole quarters to
    begin where the quad does. A *quad* has its edges moved outwards by the margin and may reach beyond the picture. It
    becomes a rectangle as wide as the longer of its upper and lower edge and as high as the longer of the others,
    rounded likewise, at least 1 pixel. What is then higher than wide, by ``region.upright`` at least, is turned.

    Cannot be cut: what has a corner that is not finite, or does not meet the picture; and a *quad* that is not convex,
    not clockwise, nearly a line, or larger than ``MAX_REGION_SIDE`` or ``limits.max_pixels`` allow. Raises
    ``ValueError`` for an array of another shape.
    """
    if quads.ndim != 3 or quads.shape[1:] != (4, 2):
        raise ValueError(f"got quads of shape {quads.shape}, expected (n, 4, 2)")
    points = quads.astype(np.float64)
    possible = np.isfinite(points).all(axis=(1, 2))
    points[~possible] = 0
    low, high = points.min(axis=1), points.max(axis=1)
    possible &= ((np.minimum(high, size_hw[::-1]) - np.maximum(low, 0)) > 0).all(axis=1)
    cut = _boxes if region.shape == "box" else _quads
    corners, shorter, sound = cut(points, region.margin, size_hw)
    possible &= sound
    widths, heights = _sides(corners)
    sizes = np.maximum(np.floor(np.stack([heights, widths], axis=1) + 0.5), 1)
    fit = np.ones(len(points), np.bool_)
    if region.shape == "quad":
        fit = (sizes <= MAX_REGION_SIDE).all(axis=1) & (sizes.prod(axis=1) <= limits.max_pixels)
    too_large, possible = possible & ~fit, possible & fit
    sizes = np.where(possible[:, None], sizes, 0).astype(np.int64)
    is_turned = np.zeros(len(points), np.bool_)
    if region.upright is not None:
        is_turned = possible & (sizes[:, 0] >= region.upright * sizes[:, 1]) & (sizes[:, 0] > sizes[:, 1])
    seen = turned(corners.astype(np.float32), is_turned.astype(np.int64))
    return Cuts(seen, np.where(is_turned[:, None], sizes[:, ::-1], sizes), is_turned, shorter, too_large)


def checked_cuts(region: Region, quads: Quads, size_hw: Size, *, limits: Limits) -> Cuts:
    """The same. Raises ``ValueError`` naming the first quad that cannot be cut."""
    found = cuts(region, quads, size_hw, limits=limits)
    impossible = np.flatnonzero(~found.possible)
    if len(impossible):
        number = int(impossible[0])
        raise ValueError(
            f"quads[{number}] {quads[number].tolist()} cannot be cut as a {region.shape} of a picture of "
            f"{size_hw[1]}x{size_hw[0]}; choose() leaves such out"
        )
    return found


_Cut = tuple[_Points, _Points, npt.NDArray[np.bool_]]
"""Corners of what is cut, shorter sides of the regions, and which can be cut."""


def _boxes(points: _Points, margin: float, size_hw: Size) -> _Cut:
    low, high = points.min(axis=1), points.max(axis=1)
    shorter = (high - low).min(axis=1)
    added, borders = margin * shorter[:, None], np.array(size_hw[::-1], np.float64)
    low, high = (np.clip(edge, 0, borders) for edge in (low - added, high + added))
    first, last = np.floor(low + 0.5), np.floor(high + 0.5)
    middle = np.minimum(np.floor((low + high) / 2), borders - 1)
    first, last = np.where(last > first, first, middle), np.where(last > first, last, middle + 1)
    corners = turned(quads_of(np.concatenate([first, last], axis=1).astype(np.float32)), -_top_left(points))
    return corners.astype(np.float64), shorter, np.ones(len(points), np.bool_)


def _top_left(points: _Points) -> npt.NDArray[np.int64]:
    """The corner of each quad that is its top left one in the picture, (n,): from there an edge goes most to the right.

    The numbers themselves decide between equal edges, so that it does not matter with which corner a quad begins.
    """
    edges = np.roll(points, -1, axis=1) - points
    ascending: npt.NDArray[np.int64] = np.lexsort((points[..., 1], points[..., 0], edges[..., 1], edges[..., 0]))
    return ascending[:, -1]


def _quads(points: _Points, margin: float, _size_hw: Size) -> _Cut:
    edges = np.roll(points, -1, axis=1) - points
    lengths = np.hypot(edges[..., 0], edges[..., 1])
    after = edges / np.where(lengths > 0, lengths, 1)[..., None]
    before = np.roll(after, 1, axis=1)
    sines = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    sound = (sines > _LEAST_SINE).all(axis=1)
    shorter = np.minimum(*_sides(points))
    # A corner is where both edges lie further out, each by the margin.
    moved = (before - after) * (margin * shorter[:, None] / np.where(sines > _LEAST_SINE, sines, 1))[..., None]
    # What is far too large for float32 is not cut.
    return np.clip(points + moved, -1e9, 1e9).astype(np.float32).astype(np.float64), shorter, sound


def _sides(points: _Points) -> tuple[_Points, _Points]:
    """The longer of the upper and the lower edge, and the longer of the others: width and height, (n,) each."""
    edges = np.roll(points, -1, axis=1) - points
    lengths = np.hypot(edges[..., 0], edges[..., 1])
    return np.maximum(lengths[:, 0], lengths[:, 2]), np.maximum(lengths[:, 1], lengths[:, 3])


@dataclass(frozen=True, slots=True)
class Chosen:
    """The regions that a stage takes: ``indices``, int64, in their order, and those that the limits left out.

    ``quads`` are their own corners, without a margin, the top left one of what the stage sees first: those that it
    turns begin at another corner than before. To choose of these again changes nothing.
    ``sample_pixels``, int64, are those that the network gets of each.
    """

    indices: npt.NDArray[np.int64]
    quads: Quads
    left_out: npt.NDArray[np.int64]
    sample_pixels: npt.NDArray[np.int64]


def choose(
    definition: Definition,
    quads: Quads,
    size_hw: Size,
    *,
    limits: Limits,
    scores: npt.NDArray[np.floating[Any]] | None = None,
    class_ids: npt.NDArray[np.integer[Any]] | None = None,
    labels: npt.NDArray[np.object_] | None = None,
) -> Chosen:
    """Which of an earlier stage's regions of a picture of ``size_hw`` the stage of a ``definition`` takes.

    Those that can be cut (``cuts``), of ``region.classes``, with ``region.min_score`` and ``region.min_side`` at least;
    of these the ``limits.max_regions`` with the best scores, or the first ones where there are no scores, as far as all
    together have at most four times the pixels of the largest picture (``limits.max_pixels``), and their samples 30
    million. What is too large to be cut is left out. ``scores``, ``class_ids`` and ``labels``, the names of the classes
    in UTF-8, are (n,). Raises ``ValueError`` where the definition takes no regions, or asks for scores or classes and
    there are none.
    """
    region = definition.region
    if region is None:
        raise ValueError(f"the definition begins with {definition.source.op}; only one with region takes regions")
    found = cuts(region, quads, size_hw, limits=limits)
    taken = (found.possible | found.too_large) & (found.shorter_sides >= region.min_side)
    if region.classes:
        if class_ids is None or labels is None:
            raise ValueError(f"region asks for classes {list(region.classes)}, but {region.of!r} gives none")
        ids = [one for one in region.classes if isinstance(one, int)]
        names = {one.encode() for one in region.classes if isinstance(one, str)}
        taken &= np.isin(class_ids, ids) | np.array([label in names for label in labels], bool)
    if region.min_score > 0:
        if scores is None:
            raise ValueError(f"region asks for min_score {region.min_score}, but {region.of!r} gives no scores")
        taken &= scores >= region.min_score
    indices = np.flatnonzero(taken & found.possible)
    best_first = indices if scores is None else indices[np.argsort(-scores[indices], kind="stable")]
    kept = best_first[: limits.max_regions]
    kept = kept[np.cumsum(found.sizes[kept].prod(axis=1)) <= _MOST_PICTURES * limits.max_pixels]
    pixels = _sample_pixels(definition, found.sizes[kept], limits)
    fit = np.cumsum(pixels) <= MOST_SAMPLE_PIXELS
    kept, pixels = kept[fit], pixels[fit]
    order = np.argsort(kept)
    kept, pixels = kept[order], pixels[order]
    quarters = found.turned[kept].astype(np.int64)
    return Chosen(kept, turned(quads[kept], quarters), np.setdiff1d(np.flatnonzero(taken), kept), pixels)


def _sample_pixels(definition: Definition, sizes: npt.NDArray[np.int64], limits: Limits) -> npt.NDArray[np.int64]:
    """The pixels that the network gets of regions of ``sizes``, (n,): 0 of those to which it cannot be applied."""
    height, width = definition.output_spec.size_hw
    if height is not None and width is not None:
        return np.full(len(sizes), height * width)
    pixels = np.zeros(len(sizes), np.int64)
    planner = Planner(definition, limits)
    for number, (rows, columns) in enumerate(sizes.tolist()):
        with suppress(BadImage):
            pixels[number] = math.prod(planner((rows, columns)).canvas_hw)
    return pixels
