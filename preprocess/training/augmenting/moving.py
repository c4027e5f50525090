"""The operations that move pixels. All of a sample's make one transform, which is sampled once."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from onestream.preprocess.geometry import Size, Window, visible_share
from onestream.preprocess.operations import MAX_SIDE_OF_OPERATION
from onestream.preprocess.projection import homographies, inverse
from onestream.preprocess.training.augmenting.draft import (
    AreaRange,
    AugmentationOperation,
    Axis,
    Draft,
    Matrix,
    PositiveRange,
    Range,
    Share,
    Use,
    about_middle,
    ordered,
)

_TRIES = 10
_MOST_DISTORTION = 0.6
"""Below two thirds any four corners that come this far towards the middle make a convex quadrilateral."""
_Side = Annotated[int, Field(ge=1, le=MAX_SIDE_OF_OPERATION)]
NOT_LINES: frozenset[Use] = frozenset({"classes", "boxes", "masks", "clips"})
"""What may be mirrored or cut: a line would show another text."""
_Angle = Annotated[float, Field(gt=-90, lt=90)]
_Angles = Annotated[tuple[_Angle, _Angle], AfterValidator(ordered)]


class MovingOperation(AugmentationOperation):
    """Base of the operations that move pixels."""

    moves: ClassVar[bool] = True


class RandomBox(MovingOperation):
    """A box of the picture, resized to the canvas, in place of the definition's geometry.

    ``area``: share of the picture's area, drawn uniformly. ``ratio``: width / height, drawn uniformly in its logarithm.
    As ``torchvision.transforms.RandomResizedCrop``: ten tries for a box that fits, at a place drawn uniformly, then the
    largest in the centre. With objects: ten tries for one that keeps ``min_visible`` of one, then the whole picture.
    """

    op: Literal["box"] = "box"
    uses: ClassVar[frozenset[Use]] = NOT_LINES
    area: AreaRange = (0.08, 1.0)
    ratio: PositiveRange = (3 / 4, 4 / 3)

    @property
    def needs(self) -> tuple[str, ...]:
        """See ``AugmentationOperation.needs``."""
        return ("box",) if self.probability == 1 else ("transform",)

    def _draw(self, draft: Draft) -> None:
        box = self._box(draft)
        (height, width), canvas = (box.height, box.width), draft.canvas_hw
        draft.fill_canvas(
            np.array([[width / canvas[1], 0, box.left], [0, height / canvas[0], box.top], [0, 0, 1]], np.float64)
        )

    def _box(self, draft: Draft) -> Window:
        (height, width), random, objects = draft.size_hw, draft.random, draft.objects_now()
        low, high = (math.log(value) for value in self.ratio)
        for _ in range(_TRIES):
            area = height * width * random.uniform(*self.area)
            ratio = math.exp(random.uniform(low, high))
            box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < box_width <= width and 0 < box_height <= height:
                top = int(random.integers(0, height - box_height + 1))
                left = int(random.integers(0, width - box_width + 1))
                box = Window(top, left, box_height, box_width)
                if objects is None or visible_share(objects, box.spans).max() >= draft.min_visible:
                    return box
        if objects is not None:
            return Window(0, 0, height, width)
        if width / height < self.ratio[0]:
            box_width, box_height = width, min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            box_width, box_height = min(width, max(1, round(height * self.ratio[1]))), height
        else:
            box_width, box_height = width, height
        return Window((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


class Flip(MovingOperation):
    """The picture mirrored: *horizontal* left to right, *vertical* top to bottom."""

    op: Literal["flip"] = "flip"
    uses: ClassVar[frozenset[Use]] = NOT_LINES
    probability: Share = 0.5
    axis: Axis = "horizontal"

    @property
    def needs(self) -> tuple[str, ...]:
        """See ``AugmentationOperation.needs``."""
        return ("flip",) if self.axis == "horizontal" else ("upside_down",)

    def _draw(self, draft: Draft) -> None:
        mirror, column = np.eye(3), 0 if self.axis == "horizontal" else 1
        mirror[column, column], mirror[column, 2] = -1, draft.size_hw[1 - column]
        draft.move(mirror)


class Rotation(MovingOperation):
    """The picture turned about its middle, counterclockwise, by an angle drawn uniformly from ``degrees``.

    As ``torchvision.transforms.RandomRotation``.
    """

    NEEDS = ("transform",)

    op: Literal["rotation"] = "rotation"
    degrees: Range = (-15.0, 15.0)

    def _draw(self, draft: Draft) -> None:
        draft.move(about_middle(turned_and_sheared(-draft.random.uniform(*self.degrees)), draft.size_hw))


class Affine(MovingOperation):
    """The picture turned, scaled, sheared about its middle, and moved; as ``torchvision.transforms.RandomAffine``.

    Drawn uniformly: ``degrees``, clockwise; the distance in x and in y, up to a share of the width and of the height
    (``translate``) to either side, in whole pixels; ``scale``; and the shear along x and along y (``shear_x``,
    ``shear_y``), in degrees.
    """

    NEEDS = ("transform",)

    op: Literal["affine"] = "affine"
    degrees: Range = (0.0, 0.0)
    translate: tuple[Share, Share] = (0.0, 0.0)
    scale: PositiveRange = (1.0, 1.0)
    shear_x: _Angles = (0.0, 0.0)
    shear_y: _Angles = (0.0, 0.0)

    def _draw(self, draft: Draft) -> None:
        (height, width), random = draft.size_hw, draft.random
        angle = random.uniform(*self.degrees)
        across, down = (
            round(random.uniform(-share * side, share * side))
            for share, side in zip(self.translate, (width, height), strict=True)
        )
        scale = random.uniform(*self.scale)
        shear = random.uniform(*self.shear_x), random.uniform(*self.shear_y)
        draft.move(about_middle(scale * turned_and_sheared(angle, *shear), draft.size_hw, (across, down)))


class Perspective(MovingOperation):
    """The picture seen from elsewhere: each corner comes towards the middle, by distances drawn uniformly.

    They are up to ``distortion`` times half the width in x, and half the height in y. With ``whole_pixels`` all is
    ``torchvision.transforms.RandomPerspective``'s: the distances are whole, halves are rounded down, and the corners
    are those of a picture without its last row and column. A low picture, such as a line of text, needs fractions.
    """

    NEEDS = ("transform",)

    op: Literal["perspective"] = "perspective"
    probability: Share = 0.5
    distortion: Annotated[float, Field(ge=0, le=_MOST_DISTORTION)] = 0.5
    whole_pixels: bool = False

    def _draw(self, draft: Draft) -> None:
        height, width = draft.size_hw
        if self.whole_pixels:
            farthest = [self._whole(side) for side in (width, height)]
            sides = np.array([max(1, width - 1), max(1, height - 1)])
            distances = draft.random.integers(0, farthest, size=(4, 2), endpoint=True).astype(np.float64)
        else:
            sides = np.array([width, height])
            distances = draft.random.uniform(0, self.distortion / 2, size=(4, 2)) * sides
        outer = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)
        to_new = homographies(np.abs(outer * sides - distances)[None], sides[None, ::-1])[0]
        draft.move(inverse(to_new), affine=False)

    def _whole(self, side: int) -> int:
        # Torchvision's may lie on one line in pictures of 4 and of 10 pixels, where they reach a third of the side.
        return max(0, min(int(self.distortion * (side // 2)), (side - 2) // 3))


class PaddedCrop(MovingOperation):
    """The picture surrounded by ``padding`` pixels of the fill, and cut to ``size`` = [height, width] at random.

    Without ``size`` it keeps its own. The place is drawn uniformly, in whole pixels; a padded picture that is smaller
    lies somewhere within. As ``torchvision.transforms.RandomCrop`` with padding.
    """

    NEEDS = ("transform",)

    op: Literal["padded_crop"] = "padded_crop"
    padding: Annotated[int, Field(ge=0, le=MAX_SIDE_OF_OPERATION)] = 4
    size: tuple[_Side, _Side] | None = None

    def _draw(self, draft: Draft) -> None:
        size = self.size or draft.size_hw
        top, left = (self._first(draft, axis, size) for axis in (0, 1))
        draft.cut(np.array([[1, 0, left], [0, 1, top], [0, 0, 1]], np.float64), size)

    def _first(self, draft: Draft, axis: int, size: Size) -> int:
        room = draft.size_hw[axis] + 2 * self.padding - size[axis]
        return int(draft.random.integers(min(0, room), max(0, room) + 1)) - self.padding


class ScaleJitter(MovingOperation):
    """The picture fitted into the canvas, scaled by a factor, at a random place, in place of the definition's geometry.

    The factor is drawn uniformly from ``scale``, and the sides are cut to whole pixels. A larger picture is cut, around
    a smaller one is fill; the place is drawn uniformly, in whole pixels. This is the large scale jitter of G. Ghiasi et
    al., *Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation* (2021), with their range;
    in torchvision ``ScaleJitter`` and ``RandomCrop`` with ``pad_if_needed``, both of one square.
    """

    NEEDS = ("transform",)

    op: Literal["scale_jitter"] = "scale_jitter"
    uses: ClassVar[frozenset[Use]] = NOT_LINES
    scale: PositiveRange = (0.1, 2.0)

    def _draw(self, draft: Draft) -> None:
        (height, width), canvas, random = draft.size_hw, draft.canvas_hw, draft.random
        # As torchvision in float32: what of a constant scale is a whole number must not become the one below.
        scale = np.float32(min(canvas[0] / height, canvas[1] / width)) * np.float32(random.uniform(*self.scale))
        sides = [max(1, int(np.float32(side) * scale)) for side in (height, width)]
        rooms = [outer - side for outer, side in zip(canvas, sides, strict=True)]
        top, left = (int(random.integers(min(0, room), max(0, room) + 1)) for room in rooms)
        down, across = height / sides[0], width / sides[1]
        draft.fill_canvas(np.array([[across, 0, -left * across], [0, down, -top * down], [0, 0, 1]], np.float64))


def turned_and_sheared(degrees: float, shear_x: float = 0.0, shear_y: float = 0.0) -> Matrix:
    """The linear map of torchvision's ``affine``, without its scale: angles in degrees, turned clockwise."""
    turn, along_x, along_y = (math.radians(value) for value in (degrees, shear_x, shear_y))
    return np.array(
        [
            [
                math.cos(turn - along_y) / math.cos(along_y),
                -math.cos(turn - along_y) * math.tan(along_x) / math.cos(along_y) - math.sin(turn),
            ],
            [
                math.sin(turn - along_y) / math.cos(along_y),
                -math.sin(turn - along_y) * math.tan(along_x) / math.cos(along_y) + math.cos(turn),
            ],
        ]
    )
