"""Random augmentation whose draws depend on seed, epoch and sample only, not on shard, batch, thread or backend."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from onestream.preprocess.geometry import Boxes, Size, Window, visible_share
from onestream.preprocess.operations import Color
from onestream.preprocess.variation import Variation

Strength = Annotated[float, Field(ge=0, le=1)]
Pair = tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]

_TRIES = 10
_MIDDLE_LEVEL = 128.0
_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
"""RGB to YIQ (NTSC, FCC 1953): a hue is an angle and a saturation a length in its I and Q."""


class Augmentation(BaseModel):
    """Random variation of images in training. The defaults are those of torchvision's ``RandomResizedCrop`` and a flip.

    ``area``: share of the image's area that the box takes, [low, high]. ``ratio``: width / height of the box, drawn
    uniformly in its logarithm. ``flip``: probability of a horizontal flip. ``brightness``, ``contrast``,
    ``saturation``: a factor is drawn from 1 - value to 1 + value; contrast turns around level 128. ``hue``: largest
    turn to either side, in turns, up to 0.5.

    ``min_visible``: in pictures with objects the box is drawn so that it keeps at least this share of the area of one
    of them (ten tries, then the whole picture), and an object of which less is left is no target any more. A quarter is
    what is left where both sides are cut in the middle: SSD's crop, torchvision's ``RandomIoUCrop`` and DALI keep an
    object whose centre is in the box.

    Colour is one linear map of the levels in YIQ, so that every backend computes the same; torchvision's
    ``ColorJitter`` mixes with the picture's mean instead and turns the hue in HSV.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    area: Pair = (0.08, 1.0)
    ratio: Pair = (3 / 4, 4 / 3)
    flip: Strength = 0.5
    brightness: Strength = 0.0
    contrast: Strength = 0.0
    saturation: Strength = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    min_visible: Strength = 0.25

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Augmentation:
        for name in ("area", "ratio"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be [low, high], got {[low, high]}")
        if self.area[1] > 1:
            raise ValueError(f"area is a share of the image, at most 1, got {self.area[1]}")
        return self

    def draw(
        self, size_hw: Size, *, seed: int, epoch: int, index: int, color: Color = "rgb", objects: Boxes | None = None
    ) -> Variation:
        """The variation of sample ``index`` in ``epoch``, for an image of ``size_hw`` = (height, width) pixels.

        ``color`` is that of the definition: the change of colour is the same in any order of the channels.
        ``objects``: the boxes of what is to be seen in it, float32 (n, 4).
        """
        random = generator(seed=seed, epoch=epoch, index=index)
        box = self._box(size_hw, random, objects if objects is not None and len(objects) else None)
        flip = bool(random.random() < self.flip)
        return Variation(box, flip, self._color_map(random, color))

    def _box(self, size_hw: Size, random: np.random.Generator, objects: Boxes | None) -> Window:
        """As ``torchvision.transforms.RandomResizedCrop.get_params``: ten tries, then the centre.

        With objects: ten tries for one that keeps an object, then the whole picture.
        """
        height, width = size_hw
        low, high = (math.log(value) for value in self.ratio)
        for _ in range(_TRIES):
            area = height * width * random.uniform(*self.area)
            ratio = math.exp(random.uniform(low, high))
            box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < box_width <= width and 0 < box_height <= height:
                top = int(random.integers(0, height - box_height + 1))
                left = int(random.integers(0, width - box_width + 1))
                box = Window(top, left, box_height, box_width)
                if objects is None or visible_share(objects, box).max() >= self.min_visible:
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

    def _color_map(self, random: np.random.Generator, color: Color) -> npt.NDArray[np.float32] | None:
        # Always drawn, so that a change of one strength does not change what is drawn after it.
        drawn = random.uniform(-1, 1, size=4)
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            return None
        brightness, contrast, saturation = 1 + drawn[:3] * (self.brightness, self.contrast, self.saturation)
        factor, added = brightness * contrast, _MIDDLE_LEVEL * (1 - contrast)
        if color == "gray":
            return np.array([[factor, added]], np.float32)
        angle = 2 * math.pi * drawn[3] * self.hue
        turn = np.array(
            [
                [1, 0, 0],
                [0, saturation * math.cos(angle), -saturation * math.sin(angle)],
                [0, saturation * math.sin(angle), saturation * math.cos(angle)],
            ]
        )
        matrix = factor * (np.linalg.inv(_YIQ) @ turn @ _YIQ)
        order = (2, 1, 0) if color == "bgr" else (0, 1, 2)
        return np.hstack([matrix[np.ix_(order, order)], np.full((3, 1), added)]).astype(np.float32)


def generator(*, seed: int, epoch: int, index: int, purpose: int = 0) -> np.random.Generator:
    """Random numbers of one sample in one epoch: a counter-based generator, so no draw depends on another sample's."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, index, epoch, purpose]))
