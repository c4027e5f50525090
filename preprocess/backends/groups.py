"""Batches cut by the pixels that are decoded at once, so that memory does not follow the size of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

DECODED_PIXELS_AT_ONCE = 128_000_000
"""Decoded pixels of one group on a GPU, 3 bytes each."""
DECODED_PIXELS_AT_ONCE_ON_CPU = 50_000_000
"""Of one group on a CPU: four pictures as large as one may be without being heavy (``limits.HEAVY_WORK``)."""


class Decoded(Protocol):
    """Something that takes memory once it is decoded."""

    @property
    def decoded_pixels(self) -> int:
        """Height x width of the decoded image."""


_Item = TypeVar("_Item", bound=Decoded)


def groups(
    planned: Sequence[_Item], *, max_images: int, max_pixels: int = DECODED_PIXELS_AT_ONCE
) -> Iterator[list[_Item]]:
    """Consecutive groups of at most ``max_images`` images and ``max_pixels`` decoded pixels.

    A larger image makes a group of its own.
    """
    group: list[_Item] = []
    pixels = 0
    for item in planned:
        if group and (len(group) == max_images or pixels + item.decoded_pixels > max_pixels):
            yield group
            group, pixels = [], 0
        group.append(item)
        pixels += item.decoded_pixels
    if group:
        yield group
