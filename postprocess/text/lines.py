"""From a network's map of probabilities to lines of text in pixels of the picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.postprocess.text.kernels import find_runs, join_runs, rectangles_of
from onestream.postprocess.text.reading_order import reading_order
from onestream.preprocess.geometry import Mapping

_Quads = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The lines found in one picture, in reading order.

    ``quads`` is (n, 4, 2) float32: x, y in pixels of the picture after its EXIF orientation, within it, clockwise from
    the top left corner; ``scores`` (n,) float32; ``image_size`` the picture's (height, width). ``left_out`` counts the
    lines beyond the most that there may be.
    """

    quads: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    image_size: tuple[int, int]
    left_out: int


def find_lines(
    probabilities: npt.NDArray[np.float32],
    mapping: Mapping,
    *,
    threshold: float,
    box_threshold: float,
    unclip_ratio: float,
    dilation: bool,
    min_side: float,
    max_lines: int,
) -> Lines:
    """The lines in a map of probabilities, float32 (height, width), which covers the network's input.

    Cells above ``threshold`` that touch, by a side or a corner, are a line; with ``dilation`` also those with one cell
    between them. A line is the rectangle of the least area round the centres of its cells, with ``dilation`` round
    their corners. Its score is the mean of the cells in it; lines with a score below ``box_threshold`` go, and so do
    those whose shorter side is below ``min_side`` cells. The rectangle then grows on every side by its area times
    ``unclip_ratio``, divided by its perimeter; its corners are mapped to the picture and clipped to it, and what is
    left must have sides of ``min_side`` pixels there. Of more than ``max_lines`` those with the best scores stay. What
    is not finite is no text.

    With ``dilation`` the rectangles have the numbers of OpenCV's, made of a mask dilated by 2x2; OpenCV counts from the
    centre of the first pixel, not from its corner.
    """
    values = np.ascontiguousarray(probabilities, np.float32)
    quads, scores = _rectangles(values, threshold, box_threshold, unclip_ratio, dilation, min_side)
    cells = np.array(mapping.canvas_hw[::-1]) / values.shape[::-1]
    height, width = mapping.source_hw
    quads = np.clip(mapping.points_to_source(quads * cells), 0, [width, height])
    quads = clockwise_from_top_left(quads)
    sides = np.linalg.norm(quads - np.roll(quads, 1, axis=1), axis=2)
    kept = np.flatnonzero(sides.min(axis=1, initial=np.inf) >= min_side)
    left_out = max(0, len(kept) - max_lines)
    if left_out:
        kept = np.sort(kept[np.argsort(-scores[kept], kind="stable")[:max_lines]])
    kept = kept[reading_order(quads[kept])]
    return Lines(quads[kept].astype(np.float32), scores[kept].astype(np.float32), mapping.source_hw, left_out)


def _rectangles(
    values: npt.NDArray[np.float32],
    threshold: float,
    box_threshold: float,
    unclip_ratio: float,
    dilation: bool,
    min_side: float,
) -> tuple[_Quads, npt.NDArray[np.float64]]:
    """Quads (n, 4, 2) in cells of the map, and their scores."""
    height, width = values.shape
    # Two cells with one between them are joined where each is half a cell larger.
    reach = 2 if dilation else 1
    runs = np.empty((height * -(-width // (reach + 1)), 3), np.int32)
    runs = runs[: find_runs(values, np.float32(threshold), reach, runs)]
    group = np.empty(len(runs), np.int32)
    groups = join_runs(runs, reach, group)
    runs = runs[np.argsort(group, kind="stable")]
    ends = np.bincount(group, minlength=groups).cumsum()
    quads, scores = np.empty((groups, 4, 2)), np.empty(groups)
    count = rectangles_of(values, runs, ends, int(dilation), min_side, box_threshold, unclip_ratio, quads, scores)
    return quads[:count] + (0.0 if dilation else 0.5), scores[:count]


def clockwise_from_top_left(quads: _Quads) -> _Quads:
    """The corners of convex quads (n, 4, 2) in the order of what is written in them, which is not upside down.

    The two leftmost corners are the left side, and the upper of them comes first: then clockwise. So lines that rise
    or fall are read along their longer side until they are nearly upright, and then from top to bottom.
    """
    by_x = np.take_along_axis(quads, np.argsort(quads[..., 0], axis=1, kind="stable")[..., None], axis=1)
    left = np.take_along_axis(by_x[:, :2], np.argsort(by_x[:, :2, 1], axis=1, kind="stable")[..., None], axis=1)
    right = np.take_along_axis(by_x[:, 2:], np.argsort(by_x[:, 2:, 1], axis=1, kind="stable")[..., None], axis=1)
    return np.stack([left[:, 0], right[:, 0], right[:, 1], left[:, 1]], axis=1)
