"""Masks as run lengths in COCO's compressed form, as pycocotools writes them in ``counts``.

A mask is read column by column, as runs of 0 and of 1 in turn, beginning with 0. From the fourth run on, its length is
stored as the difference to that of the run two before. Each number is written in digits of 5 bits, the lowest first, as
characters from code 48: ``rleToString`` in https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
"""The lengths of the runs of one mask."""

_BITS, _SIGN, _MORE, _FIRST = 5, 16, 32, 48
_DIGITS = 8
"""Enough for the runs of every picture: below 2**39."""


def encode(counts: npt.NDArray[Any]) -> bytes:
    """The compressed form of run lengths."""
    rest = counts.astype(np.int64)
    rest[3:] -= counts.astype(np.int64)[1:-2]
    digits = np.empty((len(rest), _DIGITS), np.uint8)
    told = np.empty(digits.shape, bool)
    goes_on = np.ones(len(rest), bool)
    for place in range(_DIGITS):
        digit = rest & (_MORE - 1)
        rest >>= _BITS
        told[:, place] = goes_on
        goes_on = goes_on & np.where(digit & _SIGN, rest != -1, rest != 0)
        digits[:, place] = digit + goes_on * _MORE + _FIRST
    return bytes(digits[told])


def decode(compressed: bytes | str) -> Counts:
    """The run lengths of a compressed form. Raises ``ValueError`` where it is none."""
    text = compressed.encode("ascii") if isinstance(compressed, str) else compressed
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - _FIRST
    ends = np.flatnonzero((codes & _MORE) == 0)
    if len(codes) and (codes.min() < 0 or codes.max() >= 2 * _MORE or not len(ends) or ends[-1] != len(codes) - 1):
        raise ValueError(f"{text[:40]!r} is no compressed run lengths")
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
    lengths = ends - starts + 1
    if lengths.max(initial=0) > _DIGITS:
        raise ValueError(f"{text[:40]!r} has run lengths of more than {_DIGITS} digits")
    places = np.arange(len(codes)) - np.repeat(starts, lengths)
    digits = (codes & (_MORE - 1)) << (_BITS * places)
    counts: Counts = np.add.reduceat(digits, starts) if len(starts) else np.empty(0, np.int64)
    counts -= ((codes[ends] & _SIGN) != 0) * (1 << (_BITS * lengths))
    counts[2::2] = counts[2::2].cumsum()
    counts[1::2] = counts[1::2].cumsum()
    return counts


def check(counts: Counts, size_hw: tuple[int, int]) -> None:
    """Raise ``ValueError`` where the runs are not those of a mask of this size."""
    height, width = size_hw
    # The sum of large runs overflows, and NumPy's repeat would write beyond its memory.
    if (counts < 0).any() or (counts > height * width).any() or counts.sum() != height * width:
        raise ValueError(f"run lengths of {counts.sum()} pixels, the picture has {height * width}")


def mask(counts: Counts, size_hw: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """The mask (height, width). Raises as ``check``."""
    height, width = size_hw
    check(counts, size_hw)
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def area(counts: Counts) -> int:
    """How many pixels are 1."""
    return int(counts[1::2].sum())


def common(one: Counts, other: Counts) -> int:
    """How many pixels are 1 in both masks, of one size."""
    ends = one.cumsum()
    # How many pixels of the other are 1 before a place: linear within each run.
    places = np.concatenate([[0], other.cumsum()])
    before = np.concatenate([[0], (other * (np.arange(len(other)) % 2)).cumsum()])
    return round(float((np.interp(ends[1::2], places, before) - np.interp(ends[0:-1:2], places, before)).sum()))
