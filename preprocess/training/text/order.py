"""The order of lines of text: whole pictures are shuffled, then lines within windows, which hold similar widths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.preprocess.training.augmentation import generator
from onestream.preprocess.training.order import SHUFFLE, Order, Slot

_WITHIN_WINDOWS = 2
"""A purpose of random numbers, beside ``SHUFFLE``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineOrder(Order):
    """How lines are cut into batches, as ``Order`` says, but so that few pictures are decoded twice.

    ``pictures``, int64 (count,), is the number of each line's picture, 0, 1, …; ``widths``, int64 (count,), the width
    of its sample in pixels. The lines of a picture follow each other, and a shard takes consecutive ones.
    ``window`` consecutive batches make a window: where shuffled, its lines are sorted by width, equal widths at random,
    and its batches come in a random order, the same in all shards: their batches are similarly wide at each step.
    """

    pictures: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int64]
    window: int = 8

    def batches(self, epoch: int) -> list[list[Slot]]:
        """The batches of this shard in an epoch."""
        cut = Order.batches(self, epoch)
        if not self.shuffle:
            return cut
        return [
            batch for number, window in enumerate(self.windows(cut)) for batch in self._mixed(window, number, epoch)
        ]

    def windows(self, batches: list[list[Slot]]) -> Iterator[list[list[Slot]]]:
        """The windows of an epoch's batches."""
        for first in range(0, len(batches), self.window):
            yield batches[first : first + self.window]

    def _mixed(self, window: list[list[Slot]], number: int, epoch: int) -> list[list[Slot]]:
        random = generator(seed=self.seed, epoch=epoch, index=number, purpose=_WITHIN_WINDOWS)
        places = random.permutation(len(window))
        slots = [slot for batch in window for slot in batch]
        by_width = np.lexsort((random.random(len(slots)), self.widths[[slot.index for slot in slots]]))
        ends = np.cumsum([len(batch) for batch in window])
        mixed = [[slots[at] for at in part] for part in np.split(by_width, ends[:-1])]
        return [mixed[place] for place in places]

    def _of_shard(self, epoch: int) -> npt.NDArray[np.int64]:
        order = np.arange(self.count)
        if self.shuffle:
            random = generator(seed=self.seed, epoch=epoch, index=0, purpose=SHUFFLE)
            order = np.argsort(random.permutation(int(self.pictures.max()) + 1)[self.pictures], kind="stable")
        ends = [self.count * shard // self.num_shards for shard in range(self.num_shards + 1)]
        return order[ends[self.shard_id] : ends[self.shard_id + 1]]
