"""Where the points of a picture come to lie by a perspective transform, and what of its objects is then seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.preprocess.geometry import Boxes, Mapping, Quads, Size, Spans, Window, bounding_boxes, quads_of

Points = npt.NDArray[np.float64]
Corners = tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]
"""(x, y) of the points of a picture that come to lie at the canvas's top left, top right, bottom right, bottom left."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A perspective transform from an image to the canvas; see ``Mapping``, which has the same methods.

    ``corners`` are the points of the image, in its pixels, that come to lie at the canvas's corners.
    """

    source_hw: Size
    canvas_hw: Size
    corners: Corners

    @property
    def spans(self) -> Spans:
        """Where the canvas shows what it has of the image, in its pixels: everywhere."""
        return Window(0, 0, *self.canvas_hw).spans

    @property
    def mirrored(self) -> bool:
        """Whether the canvas shows the image as a mirror does; twice mirrored it is only turned."""
        return _area(np.array(self.corners)) < 0

    @property
    def matrix(self) -> Points:
        """From (x, y, 1) of the canvas to the image, float64 (3, 3); see ``homographies``."""
        found: Points = homographies(np.array([self.corners]), np.array([self.canvas_hw]))[0]
        return found

    def points_to_canvas(self, points: Points) -> Points:
        """Points (..., 2), x and y in the image, on the canvas; NaN where they lie beyond the horizon."""
        return _moved(inverse(self.matrix), points)

    def points_to_source(self, points: Points) -> Points:
        """Points (..., 2), x and y on the canvas, in the image; they may lie outside it."""
        return _moved(self.matrix, points)

    def to_canvas(self, boxes: Boxes) -> Boxes:
        """The smallest upright boxes around boxes of the image on the canvas; they may reach beyond it."""
        return bounding_boxes(self.quads_to_canvas(quads_of(boxes)))

    def to_source(self, boxes: Boxes) -> Boxes:
        """The smallest upright boxes of the image around boxes on the canvas; they may reach beyond it."""
        return bounding_boxes(self.quads_to_source(quads_of(boxes)))

    def quads_to_canvas(self, quads: Quads) -> Quads:
        """Quads of the image on the canvas, corner by corner: one that is mirrored is no longer clockwise."""
        return self.points_to_canvas(quads.astype(np.float64)).astype(np.float32)

    def quads_to_source(self, quads: Quads) -> Quads:
        """Quads on the canvas in the image, corner by corner."""
        return self.points_to_source(quads.astype(np.float64)).astype(np.float32)


Located = Mapping | Projection
"""Where the points of a picture come to lie on the canvas, and back."""


def seen(quads: Quads, located: Projection) -> tuple[Boxes, npt.NDArray[np.float64]]:
    """What of convex quads of an image is seen on the canvas: the boxes around it there, and its share of each area.

    Boxes are float32 (n, 4), of zeros where nothing is seen; shares are 0 to 1, float64 (n,), of the area in the image.
    """
    boxes, shares = np.zeros((len(quads), 4), np.float32), np.zeros(len(quads))
    window = np.array(located.corners)
    if located.mirrored:
        window = window[::-1]
    height, width = located.canvas_hw
    for number, quad in enumerate(quads.astype(np.float64)):
        kept = _clipped(quad, window)
        whole = abs(_area(quad))
        if len(kept) < 3 or not whole:
            continue
        points = np.clip(located.points_to_canvas(kept), 0, (width, height))
        boxes[number] = (*points.min(axis=0), *points.max(axis=0))
        shares[number] = min(1.0, abs(_area(kept)) / whole)
    return boxes, shares


def homographies(quads: npt.NDArray[np.float32 | np.float64], sizes: npt.NDArray[np.int64]) -> Points:
    """The perspective transforms from rectangles to quads, float64 (n, 3, 3).

    ``sizes`` are the rectangles' (height, width). (x, y) of the rectangle, in pixels from its outer corner, comes to
    lie at (a, b) / c with (a, b, c) = transform @ (x, y, 1); its corners come to lie at the quad's. The formula is that
    of a square to a quad in P. Heckbert, *Fundamentals of Texture Mapping and Image Warping*, 1989, section 2.2.3.
    """
    corners = quads.astype(np.float64)
    one, two = corners[:, 1] - corners[:, 2], corners[:, 3] - corners[:, 2]
    skew = corners[:, 0] - corners[:, 1] + corners[:, 2] - corners[:, 3]
    area = one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0]
    across = (skew[:, 0] * two[:, 1] - skew[:, 1] * two[:, 0]) / area
    down = (one[:, 0] * skew[:, 1] - one[:, 1] * skew[:, 0]) / area
    found = np.ones((len(corners), 3, 3))
    found[:, :2, 0] = corners[:, 1] - corners[:, 0] + across[:, None] * corners[:, 1]
    found[:, :2, 1] = corners[:, 3] - corners[:, 0] + down[:, None] * corners[:, 3]
    found[:, :2, 2] = corners[:, 0]
    found[:, 2, 0], found[:, 2, 1] = across, down
    found[:, :, 0] /= sizes[:, 1, None]
    found[:, :, 1] /= sizes[:, 0, None]
    return found


def inverse(matrix: Points) -> Points:
    """The inverse of a transform, (3, 3), by its cofactors: the same bits on every machine, which LAPACK's are not."""
    (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
    first, second, third = e * i - f * h, f * g - d * i, d * h - e * g
    found = np.array(
        [
            [first, c * h - b * i, b * f - c * e],
            [second, a * i - c * g, c * d - a * f],
            [third, b * g - a * h, a * e - b * d],
        ]
    )
    inverted: Points = found / (a * first + b * second + c * third)
    return inverted


def _moved(matrix: Points, points: Points) -> Points:
    homogeneous = points @ matrix[:, :2].T + matrix[:, 2]
    # Beyond the horizon it is 0 or less, by either transform: its product with the other's is 1.
    divisor = homogeneous[..., 2:]
    moved: Points = homogeneous[..., :2] / np.where(divisor > 0, divisor, np.nan)
    return moved


def _area(polygon: Points) -> float:
    """Of a polygon (k, 2); above 0 where its corners go clockwise, y down."""
    x, y = polygon.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _clipped(polygon: Points, window: Points) -> Points:
    """The part of a polygon in a convex, clockwise window, after I. Sutherland and G. Hodgman (1974), (k, 2)."""
    for start, end in zip(window, np.roll(window, -1, axis=0), strict=True):
        if not len(polygon):
            break
        (x, y), (across, down) = start, end - start
        # Above 0 on the inner side of the edge.
        sides = across * (polygon[:, 1] - y) - down * (polygon[:, 0] - x)
        kept: list[Points] = []
        for one, other, side, next_side in zip(
            polygon, np.roll(polygon, -1, axis=0), sides, np.roll(sides, -1), strict=True
        ):
            if side >= 0:
                kept.append(one)
            if (side >= 0) != (next_side >= 0):
                kept.append(one + (other - one) * (side / (side - next_side)))
        polygon = np.array(kept).reshape(-1, 2)
    return polygon
