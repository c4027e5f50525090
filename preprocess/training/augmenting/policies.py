"""RandAugment and TrivialAugment: one or more of 14 acts, drawn uniformly, with the strengths that were published.

Acts and ranges are those of torchvision's ``v2.RandAugment`` and ``v2.TrivialAugmentWide``, on PIL images. Geometry is
that of the picture as the operations before left it, in its pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from onestream.preprocess.changes import (
    AutoContrast,
    Brightness,
    Contrast,
    Equalize,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
)
from onestream.preprocess.training.augmenting.draft import Draft, about_middle
from onestream.preprocess.training.augmenting.moving import MovingOperation, turned_and_sheared

_Bins = Annotated[int, Field(ge=2, le=1000)]


@dataclass(frozen=True, slots=True)
class _Act:
    """``do`` is given the strength, which grows evenly to ``most`` from bin to bin; ``signed``: with either sign."""

    do: Callable[[Draft, float], None]
    most: float = 0.0
    signed: bool = False


class TrivialAugment(MovingOperation):
    """One act, its strength drawn uniformly from ``bins``: S. Müller and F. Hutter, *TrivialAugment* (2021), *wide*."""

    op: Literal["trivial_augment"] = "trivial_augment"
    bins: _Bins = 31

    def _draw(self, draft: Draft) -> None:
        act = _WIDE[draft.random.integers(len(_WIDE))]
        _do(draft, act, int(draft.random.integers(self.bins)) / (self.bins - 1))


class RandAugment(MovingOperation):
    """``count`` acts, which may be equal, all with one strength: E. Cubuk et al., *RandAugment* (2019).

    ``magnitude`` is the number of a bin, of 0 to ``bins`` - 1.
    """

    op: Literal["rand_augment"] = "rand_augment"
    count: Annotated[int, Field(ge=0, le=100)] = 2
    magnitude: Annotated[int, Field(ge=0)] = 9
    bins: _Bins = 31

    @model_validator(mode="after")
    def _magnitude_is_a_bin(self) -> RandAugment:
        if self.magnitude >= self.bins:
            raise ValueError(f"magnitude must be below bins {self.bins}, got {self.magnitude}")
        return self

    def _draw(self, draft: Draft) -> None:
        for _ in range(self.count):
            act = _PUBLISHED[draft.random.integers(len(_PUBLISHED))]
            _do(draft, act, self.magnitude / (self.bins - 1))


def _do(draft: Draft, act: _Act, share: float) -> None:
    strength = share * act.most
    # Always drawn, so that what is drawn after it does not depend on the act.
    if draft.random.random() < 0.5 and act.signed:
        strength = -strength
    act.do(draft, strength)


def _nothing(_draft: Draft, _strength: float) -> None:
    pass


def _shear_x(draft: Draft, strength: float) -> None:
    draft.move(np.array([[1, strength, 0], [0, 1, 0], [0, 0, 1]]))


def _shear_y(draft: Draft, strength: float) -> None:
    draft.move(np.array([[1, 0, 0], [strength, 1, 0], [0, 0, 1]]))


def _translate(draft: Draft, across: float, down: float) -> None:
    draft.move(np.array([[1, 0, -int(across)], [0, 1, -int(down)], [0, 0, 1]], np.float64))


def _translate_x(draft: Draft, pixels: float) -> None:
    _translate(draft, pixels, 0)


def _translate_y(draft: Draft, pixels: float) -> None:
    _translate(draft, 0, pixels)


def _translate_x_share(draft: Draft, share: float) -> None:
    _translate(draft, share * draft.size_hw[1], 0)


def _translate_y_share(draft: Draft, share: float) -> None:
    _translate(draft, 0, share * draft.size_hw[0])


def _rotate(draft: Draft, degrees: float) -> None:
    draft.move(about_middle(turned_and_sheared(-degrees), draft.size_hw))


def _brightness(draft: Draft, strength: float) -> None:
    draft.changes.append(Brightness(factor=1 + strength))


def _saturation(draft: Draft, strength: float) -> None:
    draft.changes.append(Saturation(factor=1 + strength))


def _contrast(draft: Draft, strength: float) -> None:
    draft.changes.append(Contrast(factor=1 + strength))


def _sharpness(draft: Draft, strength: float) -> None:
    draft.changes.append(Sharpness(factor=1 + strength))


def _posterize(draft: Draft, fewer: float) -> None:
    draft.changes.append(Posterize(bits=8 - round(fewer)))


def _solarize(draft: Draft, share: float) -> None:
    # Rounded, since 255 / 3 is a little more than 85.
    draft.changes.append(Solarize(threshold=math.ceil(round(255 * (1 - share), 6))))


def _auto_contrast(draft: Draft, _strength: float) -> None:
    draft.changes.append(AutoContrast())


def _equalize(draft: Draft, _strength: float) -> None:
    draft.changes.append(Equalize())


def _acts(
    *, shear: float, translate: tuple[_Act, _Act], degrees: float, enhance: float, bits: float
) -> tuple[_Act, ...]:
    return (
        _Act(_nothing),
        _Act(_shear_x, shear, signed=True),
        _Act(_shear_y, shear, signed=True),
        *translate,
        _Act(_rotate, degrees, signed=True),
        _Act(_brightness, enhance, signed=True),
        _Act(_saturation, enhance, signed=True),
        _Act(_contrast, enhance, signed=True),
        _Act(_sharpness, enhance, signed=True),
        _Act(_posterize, bits),
        _Act(_solarize, 1.0),
        _Act(_auto_contrast),
        _Act(_equalize),
    )


_PUBLISHED = _acts(
    shear=0.3,
    # 150 pixels of the 331 for which the ranges were first given (AutoAugment).
    translate=(_Act(_translate_x_share, 150 / 331, signed=True), _Act(_translate_y_share, 150 / 331, signed=True)),
    degrees=30,
    enhance=0.9,
    bits=4,
)
_WIDE = _acts(
    shear=0.99,
    translate=(_Act(_translate_x, 32, signed=True), _Act(_translate_y, 32, signed=True)),
    degrees=135,
    enhance=0.99,
    bits=6,
)
