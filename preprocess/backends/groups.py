"""Batches cut by the pixels that are in memory at once, so that memory does not follow the size of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

DECODED_PIXELS_AT_ONCE = 128_000_000
"""Decoded pixels of one group on a GPU, 3 bytes each."""
DECODED_PIXELS_AT_ONCE_ON_CPU = 50_000_000
"""Of one group on a CPU: four pictures as large as one may be without being heavy (``limits.HEAVY_WORK``)."""


class HasPixels(Protocol):
    """Something that takes memory while it is worked on."""

    @property
    def pixels(self) -> int:
        """Height x width of what it takes: of an image, decoded."""


_Item = TypeVar("_Item", bound=HasPixels)


def groups(
    items: Sequence[_Item], *, max_items: int, max_pixels: int = DECODED_PIXELS_AT_ONCE
) -> Iterator[list[_Item]]:
    """Consecutive groups of at most ``max_items`` items and ``max_pixels`` pixels.

    A larger item makes a group of its own.
    """
    group: list[_Item] = []
    pixels = 0
    for item in items:
        if group and (len(group) == max_items or pixels + item.pixels > max_pixels):
            yield group
            group, pixels = [], 0
        group.append(item)
        pixels += item.pixels
    if group:
        yield group
