"""The weights of the perspective transform of regions: one source for the reference and every device."""

from __future__ import annotations

import functools

import numpy as np

from onestream.preprocess.cpu.pillow_weights import Indices, bicubic

STEPS = 256
"""Places in the picture are rounded to one part in this many of a pixel."""
DIGITS = 11
"""Binary digits of a weight after the point: the sum of 16 levels with two weights each fits into an int32."""


@functools.cache
def step_weights() -> Indices:
    """The weights of four neighbouring pixels, int32 (STEPS, 4), in units of 2^-DIGITS.

    Row n is for a place n / STEPS of a pixel behind the second one. It is Keys's cubic with a = -0.5, Pillow's
    *bicubic*, rounded; the nearest of the four takes what rounding leaves, so that each row sums to 1.
    """
    shares = np.arange(STEPS)[:, None] / STEPS
    weights: Indices = np.rint(bicubic(np.arange(-1, 3) - shares) * (1 << DIGITS)).astype(np.int32)
    nearest = 1 + (np.arange(STEPS) >= STEPS // 2)
    weights[np.arange(STEPS), nearest] += (1 << DIGITS) - weights.sum(axis=1, dtype=np.int32)
    return weights
