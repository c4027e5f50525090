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
    AnyChange,
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
_NEEDS = (
    "transform", "brightness", "saturation", "contrast", "sharpness", "posterize", "solarize", "autocontrast",
    "equalize",
)  # fmt: skip


_Do = Callable[[Draft, float], None]


@dataclass(frozen=True, slots=True)
class _Act:
    """``do`` is given the strength, which grows evenly to ``most`` from bin to bin; ``signed``: with either sign."""

    do: _Do
    most: float = 0.0
    signed: bool = False


class TrivialAugment(MovingOperation):
    """One act, its strength drawn uniformly from ``bins``: S. Müller and F. Hutter, *TrivialAugment* (2021), *wide*."""

    NEEDS = _NEEDS

    op: Literal["trivial_augment"] = "trivial_augment"
    bins: _Bins = 31

    def _draw(self, draft: Draft) -> None:
        act = _WIDE[draft.random.integers(len(_WIDE))]
        _do(draft, act, int(draft.random.integers(self.bins)) / (self.bins - 1))


class RandAugment(MovingOperation):
    """``count`` acts, which may be equal, all with one strength: E. Cubuk et al., *RandAugment* (2019).

    ``magnitude`` is the number of a bin, of 0 to ``bins`` - 1.
    """

    NEEDS = _NEEDS

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


def _moves(matrix: Callable[[Draft, float], list[list[float]]]) -> _Do:
    return lambda draft, strength: draft.move(np.array(matrix(draft, strength), np.float64))


def _changes(change: Callable[[float], AnyChange]) -> _Do:
    return lambda draft, strength: draft.changes.append(change(strength))


def _right(pixels: float) -> list[list[float]]:
    return [[1, 0, -int(pixels)], [0, 1, 0], [0, 0, 1]]


def _down(pixels: float) -> list[list[float]]:
    return [[1, 0, 0], [0, 1, -int(pixels)], [0, 0, 1]]


def _acts(
    *, shear: float, translate: tuple[_Act, _Act], degrees: float, enhance: float, bits: float
) -> tuple[_Act, ...]:
    return (
        _Act(lambda _draft, _strength: None),
        _Act(_moves(lambda _, strength: [[1, strength, 0], [0, 1, 0], [0, 0, 1]]), shear, signed=True),
        _Act(_moves(lambda _, strength: [[1, 0, 0], [strength, 1, 0], [0, 0, 1]]), shear, signed=True),
        *translate,
        _Act(
            lambda draft, angle: draft.move(about_middle(turned_and_sheared(-angle), draft.size_hw)),
            degrees,
            signed=True,
        ),
        _Act(_changes(lambda strength: Brightness(factor=1 + strength)), enhance, signed=True),
        _Act(_changes(lambda strength: Saturation(factor=1 + strength)), enhance, signed=True),
        _Act(_changes(lambda strength: Contrast(factor=1 + strength)), enhance, signed=True),
        _Act(_changes(lambda strength: Sharpness(factor=1 + strength)), enhance, signed=True),
        _Act(_changes(lambda fewer: Posterize(bits=8 - round(fewer))), bits),
        # Rounded, since 255 / 3 is a little more than 85.
        _Act(_changes(lambda share: Solarize(threshold=math.ceil(round(255 * (1 - share), 6)))), 1.0),
        _Act(_changes(lambda _: AutoContrast())),
        _Act(_changes(lambda _: Equalize())),
    )


_PUBLISHED = _acts(
    shear=0.3,
    # 150 pixels of the 331 for which the ranges were first given (AutoAugment).
    translate=(
        _Act(_moves(lambda draft, share: _right(share * draft.size_hw[1])), 150 / 331, signed=True),
        _Act(_moves(lambda draft, share: _down(share * draft.size_hw[0])), 150 / 331, signed=True),
    ),
    degrees=30,
    enhance=0.9,
    bits=4,
)
_WIDE = _acts(
    shear=0.99,
    translate=(
        _Act(_moves(lambda _, pixels: _right(pixels)), 32, signed=True),
        _Act(_moves(lambda _, pixels: _down(pixels)), 32, signed=True),
    ),
    degrees=135,
    enhance=0.99,
    bits=6,
)
