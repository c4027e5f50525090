"""The operations that change levels, on the canvas, after all of the sample's geometry and in their own order."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from onestream.preprocess.changes import (
    AnyChange,
    AutoContrast,
    Blur,
    Brightness,
    Contrast,
    Equalize,
    Erase,
    Factors,
    Fill,
    Hue,
    Invert,
    Jpeg,
    Linear,
    Noise,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
)
from onestream.preprocess.cpu.letters import LUMA
from onestream.preprocess.operations import Color
from onestream.preprocess.training.augmenting.draft import (
    AreaRange,
    AugmentationOperation,
    Draft,
    PositiveRange,
    Share,
    ordered,
)

_MIDDLE_LEVEL = 128.0
_YIQ = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
"""RGB to YIQ (NTSC, FCC 1953): a hue is an angle and a saturation a length in its I and Q."""
_TRIES = 10
_Strength = Annotated[float, Field(ge=0)]
_Turns = Annotated[float, Field(ge=0, le=0.5)]
_AtLeastZero = Annotated[tuple[_Strength, _Strength], AfterValidator(ordered)]
_Quality = Annotated[int, Field(ge=1, le=100)]


class LinearColor(AugmentationOperation):
    """Brightness, contrast, saturation and hue as one linear map of the levels in YIQ, which a GPU's graph does too.

    Of ``brightness``, ``contrast`` and ``saturation`` a factor is drawn uniformly from 1 - value to 1 + value; contrast
    turns around level 128. ``hue``: largest turn to either side, in turns.
    """

    NEEDS = ("linear",)

    op: Literal["linear_color"] = "linear_color"
    brightness: Share = 0.0
    contrast: Share = 0.0
    saturation: Share = 0.0
    hue: _Turns = 0.0

    def _draw(self, draft: Draft) -> None:
        drawn = draft.random.uniform(-1, 1, size=4)
        if self.brightness or self.contrast or self.saturation or self.hue:
            draft.changes.append(Linear.of(self._factors(drawn, draft.color)))

    def _factors(self, drawn: npt.NDArray[np.float64], color: Color) -> Factors:
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


class ColorJitter(AugmentationOperation):
    """Brightness, contrast, saturation and hue in an order drawn uniformly; as ``torchvision.transforms.ColorJitter``.

    Of the first three a factor is drawn uniformly from 1 - value, or 0, to 1 + value. ``hue``: largest turn to either
    side, in turns, drawn uniformly. What has strength 0 is left out.
    """

    op: Literal["color_jitter"] = "color_jitter"
    brightness: _Strength = 0.0
    contrast: _Strength = 0.0
    saturation: _Strength = 0.0
    hue: _Turns = 0.0

    @property
    def needs(self) -> tuple[str, ...]:
        """See ``AugmentationOperation.needs``."""
        return tuple(name for name in ("brightness", "contrast", "saturation", "hue") if getattr(self, name))

    def _draw(self, draft: Draft) -> None:
        random = draft.random
        order = random.permutation(4)
        drawn: list[AnyChange] = []
        for strength, change in (
            (self.brightness, Brightness),
            (self.contrast, Contrast),
            (self.saturation, Saturation),
        ):
            drawn.append(change(factor=random.uniform(max(0.0, 1 - strength), 1 + strength)))
        drawn.append(Hue(turns=random.uniform(-self.hue, self.hue)))
        strengths = (self.brightness, self.contrast, self.saturation, self.hue)
        draft.changes += [drawn[place] for place in order if strengths[place]]


class Grayscale(AugmentationOperation):
    """Luma (ITU-R 601) in every channel; as ``torchvision.transforms.RandomGrayscale``."""

    NEEDS = ("saturation",)

    op: Literal["grayscale"] = "grayscale"
    probability: Share = 0.1

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Saturation(factor=0.0))


class GaussianBlur(AugmentationOperation):
    """A blur whose standard deviation, in pixels, is drawn uniformly from ``sigma``.

    The range is that of ``torchvision.transforms.GaussianBlur``; the blur is Pillow's (``changes.Blur``).
    """

    NEEDS = ("blur",)

    op: Literal["blur"] = "blur"
    sigma: PositiveRange = (0.1, 2.0)

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Blur(sigma=draft.random.uniform(*self.sigma)))


class GaussianNoise(AugmentationOperation):
    """Gaussian noise whose standard deviation, in levels, is drawn uniformly from ``sigma``.

    ``torchvision.transforms.v2.GaussianNoise`` has a constant one, of 25.5 levels by default.
    """

    NEEDS = ("noise",)

    op: Literal["noise"] = "noise"
    sigma: _AtLeastZero = (0.0, 25.5)

    def _draw(self, draft: Draft) -> None:
        sigma, seed = draft.random.uniform(*self.sigma), int(draft.random.integers(2**63))
        draft.changes.append(Noise(sigma=sigma, seed=seed))


class JpegArtefacts(AugmentationOperation):
    """The picture written as JPEG and read again; the quality is a whole number, drawn uniformly from ``quality``.

    As ``torchvision.transforms.v2.JPEG``, which has no range of its own.
    """

    NEEDS = ("jpeg",)

    op: Literal["jpeg"] = "jpeg"
    quality: Annotated[tuple[_Quality, _Quality], AfterValidator(ordered)] = (30, 95)

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Jpeg(quality=int(draft.random.integers(self.quality[0], self.quality[1] + 1))))


class RandomErasing(AugmentationOperation):
    """Rectangles of the canvas filled with ``fill``: one level, or those of red, green and blue; in gray their luma.

    ``area``: share of the canvas's area of each, drawn uniformly. ``ratio``: height / width, drawn uniformly in its
    logarithm. As ``torchvision.transforms.RandomErasing``: ten tries for one that fits, at a place drawn uniformly, or
    none. ``count`` rectangles, which may overlap, make T. DeVries and G. Taylor's *Cutout* (2017) of several holes.
    Objects that are hidden so stay objects.
    """

    NEEDS = ("erase",)

    op: Literal["erase"] = "erase"
    probability: Share = 0.5
    area: AreaRange = (0.02, 0.33)
    ratio: PositiveRange = (0.3, 3.3)
    count: Annotated[int, Field(ge=1, le=100)] = 1
    fill: Fill = 0

    def _draw(self, draft: Draft) -> None:
        for _ in range(self.count):
            self._erase(draft)

    def _erase(self, draft: Draft) -> None:
        (height, width), random = draft.canvas_hw, draft.random
        fill = self.fill
        if draft.color == "gray" and not isinstance(fill, int):
            fill = round(float(np.dot(LUMA, fill)))
        low, high = (math.log(value) for value in self.ratio)
        for _ in range(_TRIES):
            area = height * width * random.uniform(*self.area)
            ratio = math.exp(random.uniform(low, high))
            rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < rows < height and 0 < columns < width:
                top = int(random.integers(0, height - rows + 1))
                left = int(random.integers(0, width - columns + 1))
                draft.changes.append(Erase(top=top, left=left, height=rows, width=columns, fill=fill))
                return


class RandomPosterize(AugmentationOperation):
    """Only the highest ``bits`` of each level; as ``torchvision.transforms.RandomPosterize``."""

    NEEDS = ("posterize",)

    op: Literal["posterize"] = "posterize"
    probability: Share = 0.5
    bits: Annotated[int, Field(ge=1, le=8)] = 4

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Posterize(bits=self.bits))


class RandomSolarize(AugmentationOperation):
    """Levels from ``threshold`` on inverted; as ``torchvision.transforms.RandomSolarize``."""

    NEEDS = ("solarize",)

    op: Literal["solarize"] = "solarize"
    probability: Share = 0.5
    threshold: Annotated[int, Field(ge=0, le=256)] = 128

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Solarize(threshold=self.threshold))


class RandomSharpness(AugmentationOperation):
    """Sharpness with a factor drawn uniformly from ``factor``: 0 is smoothed, 1 unchanged.

    ``torchvision.transforms.RandomAdjustSharpness`` has a constant one, which a range of one number is.
    """

    NEEDS = ("sharpness",)

    op: Literal["sharpness"] = "sharpness"
    probability: Share = 0.5
    factor: _AtLeastZero = (0.0, 2.0)

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Sharpness(factor=draft.random.uniform(*self.factor)))


class RandomAutoContrast(AugmentationOperation):
    """Each channel stretched to all levels; as ``torchvision.transforms.RandomAutocontrast``."""

    NEEDS = ("autocontrast",)

    op: Literal["autocontrast"] = "autocontrast"
    probability: Share = 0.5

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(AutoContrast())


class RandomEqualize(AugmentationOperation):
    """Each channel's histogram made even; as ``torchvision.transforms.RandomEqualize``."""

    NEEDS = ("equalize",)

    op: Literal["equalize"] = "equalize"
    probability: Share = 0.5

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Equalize())


class RandomInvert(AugmentationOperation):
    """All levels inverted; as ``torchvision.transforms.RandomInvert``."""

    NEEDS = ("invert",)

    op: Literal["invert"] = "invert"
    probability: Share = 0.5

    def _draw(self, draft: Draft) -> None:
        draft.changes.append(Invert())
