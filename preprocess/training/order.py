"""Chooses the samples of each batch of an epoch: shuffled, split over the shards of processes, and cut into batches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch.distributed

from onestream.preprocess.training.augmentation import generator

LastBatch = Literal["partial", "pad", "drop"]
SHUFFLE = 1
"""What random numbers are for, so that no draw of an augmentation equals one of an order."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place in a batch: a sample's index in the dataset, and whether it only fills the batch up."""

    index: int
    is_padding: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """How a dataset of ``count`` samples is cut into batches.

    Every sample comes once per epoch over all shards, and all shards have the same number of batches. What does not
    fill a last batch makes a smaller one (*partial*), is filled up with repeated samples (*pad*) or left out (*drop*).
    """

    count: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    shard_id: int = 0
    num_shards: int = 1
    last_batch: LastBatch = "partial"
    follows_from: ClassVar[tuple[str, ...]] = ("count", "batch_size", "shuffle", "seed", "num_shards", "last_batch")
    """What the batches of an epoch follow from."""

    def check(self) -> Order:
        """Return the order itself, or raise ``ValueError`` naming what is out of range."""
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.shard_id < self.num_shards:
            raise ValueError(f"shard_id must be from 0 to num_shards - 1 = {self.num_shards - 1}, got {self.shard_id}")
        if self.last_batch not in ("partial", "pad", "drop"):
            raise ValueError(f"last_batch must be 'partial', 'pad' or 'drop', got {self.last_batch!r}")
        fewest, batches = self.count // self.num_shards, self.batches_per_epoch
        if not batches:
            raise ValueError(
                f"{self.count} samples in {self.num_shards} shards give no whole batch of {self.batch_size}; "
                "use last_batch='partial' or 'pad', or smaller batches"
            )
        if self.last_batch != "drop" and (fewest == 0 or (self.last_batch == "partial" and fewest < batches)):
            raise ValueError(
                f"{self.count} samples cannot give {self.num_shards} shards equal numbers of batches of "
                f"{self.batch_size} with last_batch={self.last_batch!r}; use 'drop', or "
                + ("fewer shards" if fewest == 0 else "'pad'")
            )
        return self

    @property
    def batches_per_epoch(self) -> int:
        """Batches of every shard."""
        if self.last_batch == "drop":
            return self.count // self.num_shards // self.batch_size
        return -(-self.count // self.num_shards // self.batch_size) if self.count else 0

    def batches(self, epoch: int) -> list[list[Slot]]:
        """The batches of this shard in an epoch."""
        mine = [Slot(int(index)) for index in self._of_shard(epoch)]
        wanted, size = self.batches_per_epoch, self.batch_size
        if self.last_batch == "drop":
            mine = mine[: wanted * size]
        if self.last_batch == "pad":
            mine += [Slot(mine[n % len(mine)].index, is_padding=True) for n in range(wanted * size - len(mine))]
        # A shard that is one sample short still needs as many batches: its last ones are smaller.
        ends = [min((n + 1) * size, len(mine) - (wanted - 1 - n)) for n in range(wanted)]
        return [mine[first:end] for first, end in zip([0, *ends], ends, strict=False)]

    def _of_shard(self, epoch: int) -> npt.NDArray[np.int64]:
        """The samples of this shard in an epoch, in order."""
        order = np.arange(self.count)
        if self.shuffle:
            order = generator(seed=self.seed, epoch=epoch, index=0, purpose=SHUFFLE).permutation(self.count)
        return order[self.shard_id :: self.num_shards]


def this_shard(shard_id: int | None, num_shards: int | None) -> tuple[int, int]:
    """(shard_id, num_shards) as given, or else of ``torch.distributed``, of torchrun's environment, or (0, 1).

    Raises ``ValueError`` where only one is given, or the environment's are no numbers.
    """
    if (shard_id is None) != (num_shards is None):
        raise ValueError(f"give both shard_id and num_shards, or neither; got {shard_id} and {num_shards}")
    if shard_id is not None and num_shards is not None:
        return shard_id, num_shards
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and world_size.isdigit()):
        raise ValueError(f"RANK and WORLD_SIZE in the environment must be numbers, got {rank!r} and {world_size!r}")
    return int(rank), int(world_size)
