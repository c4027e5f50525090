"""The order in which lines of text are read, whichever way the page is turned."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_TALL = 1.5
"""A line so many times taller than wide is read from top to bottom: what PaddleOCR turns upright."""
_AGREED = 0.5
"""Lines' directions add up to at least this share of their lengths, or some of the lines are upside down to others."""


def reading_order(quads: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    """The places of quads (n, 4, 2) in reading order: row by row from above, in a row from the left.

    Corners go clockwise from the top left of what is written. Above and left are those of the text: its direction is
    the mean of the lines', weighted by their lengths. Where lines cancel out, as those do that are upside down to
    others, it is that of the heavier half: of those within 90 degrees of the longest line, or of the rest. Lines that
    are taller than wide by half count as written from top to bottom; of these and the others only those decide that are
    longer together. From above, a line begins a new row where its centre is below that of the row's first line by more
    than half the height of the lower of the two.
    """
    corners = np.asarray(quads, np.float64)
    if not len(corners):
        return np.empty(0, np.int64)
    # Sums are rounded: whichever comes first, they are the same of the same lines.
    sorted_lines: npt.NDArray[np.int64] = np.lexsort(corners.reshape(-1, 8).T)
    corners = corners[sorted_lines]
    wide = (corners[:, 1] - corners[:, 0] + corners[:, 2] - corners[:, 3]) / 2
    tall = (corners[:, 3] - corners[:, 0] + corners[:, 2] - corners[:, 1]) / 2
    widths, heights = np.linalg.norm(wide, axis=1), np.linalg.norm(tall, axis=1)
    upright = heights >= _TALL * widths
    lengthwise = np.where(upright[:, None], tall, wide)
    mostly_upright = heights[upright].sum() > widths[~upright].sum()
    direction = _direction(lengthwise[upright == mostly_upright])
    direction /= max(float(np.linalg.norm(direction)), float(np.finfo(np.float64).tiny))
    centres = corners.mean(axis=1)
    along, down = centres @ direction, centres @ np.array([-direction[1], direction[0]])
    thickness = np.minimum(widths, heights)
    row_of = np.empty(len(corners), np.int64)
    row, first = -1, 0
    for line in np.argsort(down, kind="stable").tolist():
        if row < 0 or down[line] - down[first] > min(thickness[line], thickness[first]) / 2:
            row, first = row + 1, line
        row_of[line] = row
    order = np.lexsort((along, row_of))
    places: npt.NDArray[np.int64] = sorted_lines[order]
    return places


def _direction(lines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Where lines (n, 2), from their beginnings to their ends, go together; of any length."""
    lengths = np.linalg.norm(lines, axis=1)
    together: npt.NDArray[np.float64] = lines.sum(axis=0)
    if np.linalg.norm(together) >= _AGREED * lengths.sum():
        return together
    agree = lines @ lines[lengths.argmax()] >= 0
    heavier = agree if lengths[agree].sum() >= lengths[~agree].sum() else ~agree
    return np.asarray(lines[heavier].sum(axis=0))
