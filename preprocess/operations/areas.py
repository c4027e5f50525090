"""Sizes in whole multiples of a side, chosen by how many pixels or patches there are: as vision-language models do."""

from __future__ import annotations

import math
from typing import Literal

from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size

Small = Literal["keep", "together", "each"]
MOST_ELONGATED = 200
"""The longer side of a picture by its shorter one, at most, where ``within_area`` resizes it."""

_FACTOR_FOUND = 1e-5


def within_area(
    size_hw: Size,
    multiple_of: int,
    least: int,
    most: int,
    *,
    small: Small = "keep",
    frames: int = 1,
    temporal: int = 1,
) -> Size:
    """The multiples nearest to a size of which ``frames`` pictures have ``least`` to ``most`` pixels: ``smart_resize``.

    Sides are rounded, a half to the even multiple, and so is the number of frames to a multiple of ``temporal``; more
    pixels shrink by one factor and sides are rounded down, fewer grow and they are rounded up, which may pass ``most``.
    Raises ``BadImage`` in the words of transformers: beyond ``MOST_ELONGATED``, and for fewer frames than ``temporal``.
    """
    if frames < temporal:
        raise BadImage("bad_request", f"t:{frames} must be larger than temporal_factor:{temporal}")
    height, width = _grown(size_hw, multiple_of, small)
    ratio = max(height, width) / min(height, width)
    if ratio > MOST_ELONGATED:
        raise BadImage("too_many_pixels", f"absolute aspect ratio must be smaller than {MOST_ELONGATED}, got {ratio}")
    rounded = round(height / multiple_of) * multiple_of, round(width / multiple_of) * multiple_of
    pixels = round(frames / temporal) * temporal * rounded[0] * rounded[1]
    if pixels > most:
        shrunk = math.sqrt(frames * height * width / most)
        return (
            max(multiple_of, math.floor(height / shrunk / multiple_of) * multiple_of),
            max(multiple_of, math.floor(width / shrunk / multiple_of) * multiple_of),
        )
    if pixels < least:
        grown = math.sqrt(least / (frames * height * width))
        return (
            math.ceil(height * grown / multiple_of) * multiple_of,
            math.ceil(width * grown / multiple_of) * multiple_of,
        )
    return rounded


def capped(least: int, most: int, cap: int, frames: int, *, counts_frames: bool) -> int:
    """``most`` of a video of so many frames where ``cap`` bounds it too: transformers' ``cap_pixels_per_frame``.

    With ``counts_frames`` ``least`` and ``most`` are of all frames and ``cap`` is of one, and otherwise the reverse.
    """
    share = min(cap, most // frames) if counts_frames else min(most, cap // frames)
    of_frame = max(share, int(least * 1.05))
    return of_frame * frames if counts_frames else of_frame


def within_patches(size_hw: Size, patch: int, most: int) -> Size:
    """The largest multiples of ``patch`` of which ``most`` squares or fewer cover a picture: SigLIP2-NaFlex's.

    Both sides are rounded up after one factor, up to 100, which is bisected to 1e-5.
    """

    def covered(scale: float) -> Size:
        height, width = (max(1, math.ceil(side * scale / patch)) for side in size_hw)
        return height, width

    low, high = _FACTOR_FOUND / 10, 100.0
    while high - low >= _FACTOR_FOUND:
        scale = (low + high) / 2
        down, across = covered(scale)
        low, high = (scale, high) if down * across <= most else (low, scale)
    down, across = covered(low)
    return down * patch, across * patch


def _grown(size_hw: Size, least: int, small: Small) -> Size:
    """A size of which no side is shorter than ``least``, as ``resize.small`` says; rounding may leave one below."""
    height, width = size_hw
    if small == "together" and min(size_hw) < least:
        scale = max(least / height, least / width)
        return int(height * scale), int(width * scale)
    if small == "each":
        if height < least:
            height, width = least, round(width * least / height)
        if width < least:
            height, width = round(height * least / width), least
    return height, width
