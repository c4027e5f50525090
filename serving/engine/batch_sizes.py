"""The batch sizes for which there are CUDA graphs, of Triton's TensorRT backend and of our sessions alike.

A batch of another size takes the next one's graph: its last rows hold what was there before, and nobody reads theirs.
"""

from __future__ import annotations

from bisect import bisect_left

_EVERY_GPU = (1, 2, 4, 8, 16, 32)
_SMALL = 8
"""Above it a plan has a second optimization profile."""


def batch_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 32, 48, 64, 96, 128 and so on, and ``largest``, which is at least 1: 16 sizes for 1024."""
    sizes, power = list(_EVERY_GPU), _EVERY_GPU[-1]
    while power < largest:
        sizes += [power + power // 2, 2 * power]
        power *= 2
    return (*(size for size in sizes if size < largest), largest)


def next_size(batch: int, sizes: tuple[int, ...]) -> int:
    """The smallest of ``sizes`` that holds a batch."""
    return sizes[bisect_left(sizes, batch)]


def tuned_sizes(largest: int) -> tuple[int, ...]:
    """The batch sizes that a plan's optimization profiles are tuned for, of which each takes every batch."""
    return (_SMALL, largest) if largest > _SMALL else (largest,)


def nearest(batch: int, tuned: tuple[int, ...]) -> int:
    """The index of the profile for a batch: the one tuned for the nearest size, as Triton's backend chooses."""
    return min(range(len(tuned)), key=lambda index: abs(tuned[index] - batch))
