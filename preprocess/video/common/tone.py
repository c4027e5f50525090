"""HDR to SDR: pictures of PQ and HLG in BT.2020, as RGB of 8 bit, to what an SDR display shows, by one stated map.

1. Light: PQ's EOTF (BT.2100), or HLG's inverse OETF and, channel by channel, its OOTF for a display of 1000 cd/m²
   (gamma 1.2). 203 cd/m², where BT.2408 has white, are 1.
2. BT.2020's primaries to BT.709's (BT.2087), what is below 0 cut off.
3. Light up to 0.8 is kept. Above, the largest channel x becomes 1 - 0.2 exp((0.8 - x) / 0.2), which stays below 1, and
   the others are scaled alike, so that hues stay.
4. A display's gamma, 2.4 (BT.1886), to 255 levels.

Integers and tables, so that every machine and both implementations give the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

Hdr = Literal["pq", "hlg"]
Pixels = npt.NDArray[np.uint8]
Tables = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]

_WHITE_CD_M2, _PEAK_CD_M2 = 203.0, 1000.0
_KNEE = 0.8
_WHITE_AT = 4
"""Times white from which on the largest channel is 1 in ``LIGHT_BITS``."""
_GAMMA = 2.4

LIGHT_BITS = 18
"""Fractional bits of light, of which 1 is white."""
KNEE = round(_KNEE * (1 << LIGHT_BITS))
LARGEST_BITS = 6
"""The largest channel is looked up without so many of them."""
MATRIX_BITS = 14
TO_BT709: npt.NDArray[np.int64] = np.round(
    np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]) * (1 << MATRIX_BITS)
).astype(np.int64)
"""BT.2087-0, annex 1, with ``MATRIX_BITS``."""


def _light(transfer: Hdr) -> npt.NDArray[np.float64]:
    """Light of the 256 levels, of which 1 is white."""
    level: npt.NDArray[np.float64] = np.arange(256) / 255
    light: npt.NDArray[np.float64]
    if transfer == "pq":
        root = level ** (1 / 78.84375)
        share = np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)
        light = 10000 / _WHITE_CD_M2 * share ** (1 / 0.1593017578125)
        return light
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene = np.where(level <= 0.5, level**2 / 3, (np.exp((level - c) / a) + b) / 12)
    light = _PEAK_CD_M2 / _WHITE_CD_M2 * scene**1.2
    return light


@lru_cache
def tables(transfer: Hdr) -> Tables:
    """Light of each level; what the largest channel becomes; the level of light up to 1. Not to be changed."""
    one = 1 << LIGHT_BITS
    light = np.round(_light(transfer) * one).astype(np.int64)
    largest = np.arange((_WHITE_AT << LIGHT_BITS >> LARGEST_BITS) + 1) * (1 << LARGEST_BITS) / one
    above = np.maximum(largest - _KNEE, 0)
    kept = np.where(above == 0, largest, 1 - (1 - _KNEE) * np.exp(-above / (1 - _KNEE)))
    levels = np.round(255 * (np.arange(one + 1) / one) ** (1 / _GAMMA)).astype(np.uint8)
    return light, np.round(kept * one).astype(np.int64), levels


def tone_mapped_reference(rgb: Pixels, transfer: Hdr) -> Pixels:
    """(height, width, 3) uint8 RGB of an SDR display, from that of HDR: the specification, in NumPy."""
    light, kept, levels = tables(transfer)
    mixed = np.maximum(light[rgb] @ TO_BT709.T >> MATRIX_BITS, 0)
    largest = np.maximum(mixed.max(axis=2, keepdims=True), 1)
    most = kept[np.minimum(largest >> LARGEST_BITS, len(kept) - 1)]
    mapped: Pixels = levels[np.where(largest > KNEE, mixed * most // largest, mixed)]
    return mapped


def tone_mapped(rgb: Pixels, transfer: Hdr) -> Pixels:
    """``tone_mapped_reference``, compiled by Numba and equal in every bit."""
    from onestream.preprocess.video.common.tone_kernels import map_tones

    out = np.empty_like(rgb)
    map_tones(rgb, out, *tables(transfer), TO_BT709, MATRIX_BITS, LARGEST_BITS, KNEE)
    return out
