"""The weights of the perspective transform of regions: one source for the reference and every device."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

STEPS = 256
"""Places in the picture are rounded to one part in this many of a pixel."""
DIGITS = 11
"""Binary digits of a weight after the point: the sum of 16 levels with two weights each fits into an int32."""


@functools.cache
def step_weights() -> npt.NDArray[np.int32]:
    """The weights of four neighbouring pixels, int32 (STEPS, 4), in units of 2^-DIGITS.

    Row n is for a place n / STEPS of a pixel behind the second one. It is Keys's cubic with a = -0.5, Pillow's
    *bicubic*, rounded; the nearest of the four takes what rounding leaves, so that each row sums to 1.
    """
    shares = np.arange(STEPS)[:, None] / STEPS
    weights: npt.NDArray[np.int32] = np.rint(bicubic(np.arange(-1, 3) - shares) * (1 << DIGITS)).astype(np.int32)
    nearest = 1 + (np.arange(STEPS) >= STEPS // 2)
    weights[np.arange(STEPS), nearest] += (1 << DIGITS) - weights.sum(axis=1, dtype=np.int32)
    return weights


def bicubic(places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The weight of a pixel so far away: Keys's cubic with a = -0.5."""
    x, a = np.abs(places), -0.5
    near, far = ((a + 2.0) * x - (a + 3.0)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
