"""Chooses the samples of each batch of an epoch: shuffled, split over the shards of processes, and cut into batches."""

from __future__ import annotations

import operator
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch.distributed
import torch.utils.data

from onestream.preprocess.training.augmentation import generator

LastBatch = Literal["partial", "pad", "drop"]
SHUFFLE = 1
"""What random numbers are for, so that no draw of an augmentation equals one of an order."""
_SAMPLE = 3
"""A purpose beside ``SHUFFLE``."""
_REPEAT = 2**32
"""Epochs by which the draws of a repeated sample are later; no training has as many."""
Sampler: TypeAlias = torch.utils.data.Sampler[int] | Sequence[int]
"""What gives the indices of an epoch, with a length."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place in a batch: a sample's index in the dataset, and whether it only fills the batch up.

    ``repeat`` says how often the sample came before in the same epoch.
    """

    index: int
    is_padding: bool = False
    repeat: int = 0

    def drawn_in(self, epoch: int) -> int:
        """The epoch for which an augmentation draws: a repeat is varied as in another epoch."""
        return epoch + _REPEAT * self.repeat


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
        mine = self._slots(epoch)
        wanted, size = self.batches_per_epoch, self.batch_size
        if self.last_batch == "drop":
            mine = mine[: wanted * size]
        if self.last_batch == "pad":
            mine += [Slot(mine[n % len(mine)].index, is_padding=True) for n in range(wanted * size - len(mine))]
        # A shard that is one sample short still needs as many batches: its last ones are smaller.
        ends = [min((n + 1) * size, len(mine) - (wanted - 1 - n)) for n in range(wanted)]
        return [mine[first:end] for first, end in zip([0, *ends], ends, strict=False)]

    def _slots(self, epoch: int) -> list[Slot]:
        """The samples of this shard in an epoch, in order."""
        return [Slot(int(index)) for index in self._of_shard(epoch)]

    def _of_shard(self, epoch: int) -> npt.NDArray[np.int64]:
        """The samples of this shard in an epoch, in order."""
        order = np.arange(self.count)
        if self.shuffle:
            order = generator(seed=self.seed, epoch=epoch, index=0, purpose=SHUFFLE).permutation(self.count)
        return order[self.shard_id :: self.num_shards]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledOrder(Order):
    """The order that a sampler gives, before it is split over shards; see ``order_of``.

    ``size`` is the number of samples of the dataset. ``sampled`` names the sampler and sums up what it gives for epoch
    0: the state of a loader holds it.
    """

    sampler: Sampler
    size: int
    sampled: str = ""
    follows_from: ClassVar[tuple[str, ...]] = (*Order.follows_from, "sampled")

    def indices(self, epoch: int) -> list[int]:
        """All indices of an epoch. Raises ``ValueError`` where they are out of range or more or fewer than announced.

        The sampler draws from PyTorch's random numbers, or from its own ``generator``, which are seeded for it alone.
        """
        sampler: Any = self.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        seed = int(generator(seed=self.seed, epoch=epoch, index=0, purpose=_SAMPLE).integers(2**63))
        own = getattr(sampler, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(seed)
        before = torch.get_rng_state()
        try:
            # Not torch.manual_seed, which seeds the GPUs, too.
            torch.default_generator.manual_seed(seed)
            given = list(sampler)
        finally:
            torch.set_rng_state(before)
        try:
            found = [operator.index(one) for one in given]
        except TypeError:
            raise ValueError(f"{type(sampler).__name__} must give indices, which are whole numbers") from None
        if len(found) != self.count:
            raise ValueError(f"{type(sampler).__name__} gives {len(found)} indices; its length is {self.count}")
        if beyond := [one for one in found if not 0 <= one < self.size]:
            raise ValueError(f"{type(sampler).__name__} gives the index {beyond[0]}; expected 0 to {self.size - 1}")
        return found

    def _slots(self, epoch: int) -> list[Slot]:
        seen: Counter[int] = Counter()
        slots = []
        for index in self.indices(epoch):
            slots.append(Slot(index, repeat=seen[index]))
            seen[index] += 1
        return slots[self.shard_id :: self.num_shards]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockOrder(Order):
    """A random order in which samples that are read at once stay near each other.

    The blocks, which begin at ``block_starts``, come in random order, and each shard takes a part of them in a row;
    there every ``shuffle_buffer`` samples are shuffled. ``blocks`` sums up where they begin.
    """

    block_starts: npt.NDArray[np.int64]
    shuffle_buffer: int
    blocks: str
    follows_from: ClassVar[tuple[str, ...]] = (*Order.follows_from, "shuffle_buffer", "blocks")

    def _of_shard(self, epoch: int) -> npt.NDArray[np.int64]:
        starts, size = self.block_starts, self.shuffle_buffer
        ends = np.append(starts[1:], self.count)
        blocks = generator(seed=self.seed, epoch=epoch, index=0, purpose=SHUFFLE).permutation(len(starts))
        samples = np.concatenate([np.arange(starts[one], ends[one]) for one in blocks])
        fewest, more = divmod(self.count, self.num_shards)
        first = self.shard_id * fewest + min(self.shard_id, more)
        mine = samples[first : first + fewest + (self.shard_id < more)]
        random = generator(seed=self.seed, epoch=epoch, index=1 + self.shard_id, purpose=SHUFFLE)
        for begin in range(0, len(mine), size):
            random.shuffle(mine[begin : begin + size])
        return mine


def order_of(
    size: int,
    batch_size: int,
    *,
    sampler: Sampler | None,
    shuffle: bool | None,
    shuffle_buffer: int | None = None,
    block_starts: npt.NDArray[np.int64] | None = None,
    train: bool,
    seed: int,
    shard_id: int | None,
    num_shards: int | None,
    last_batch: LastBatch,
) -> Order:
    """The order of a loader's options, for a dataset of ``size`` samples. Raises ``ValueError`` naming one that is bad.

    ``sampler`` takes the place of ``shuffle``. It must give the same indices for the same seed and epoch, in all shards
    and in a process that resumes, so one that draws from anything but PyTorch's random numbers is refused.
    ``shuffle_buffer`` is that of a ``BlockOrder``, for a dataset that is read in blocks.
    """
    shard_id, num_shards = this_shard(shard_id, num_shards)
    options: dict[str, Any] = {"shuffle": True, "seed": seed, "shard_id": shard_id, "num_shards": num_shards}
    options["last_batch"] = last_batch
    if shuffle_buffer is not None:
        if sampler is not None or shuffle is False:
            raise ValueError("shuffle_buffer shuffles; give it without sampler and shuffle=False")
        if block_starts is None or not len(block_starts):
            raise ValueError(
                "shuffle_buffer is for samples that are read in blocks: read_parquet, or read_tar with block_bytes"
            )
        blocks = f"{len(block_starts)} {zlib.crc32(block_starts.tobytes()):08x}"
        options |= {"block_starts": block_starts, "shuffle_buffer": shuffle_buffer, "blocks": blocks}
        return BlockOrder(size, batch_size, **options).check()
    if sampler is None:
        shuffles = train if shuffle is None else shuffle
        return Order(size, batch_size, **{**options, "shuffle": shuffles}).check()
    if shuffle is not None:
        raise ValueError("give either sampler or shuffle: the sampler chooses the order")
    name = type(sampler).__name__
    if isinstance(sampler, torch.utils.data.DistributedSampler):
        raise ValueError(f"{name} splits an epoch itself; the loader does that, by shard_id and num_shards")
    if not hasattr(sampler, "__len__") or not hasattr(sampler, "__iter__"):
        raise ValueError(f"sampler must be a torch.utils.data.Sampler or a list of indices with a length, got {name}")
    options |= {"sampler": sampler, "size": size}
    order = SampledOrder(len(sampler), batch_size, **options)
    first = order.indices(0)
    if order.indices(0) != first:
        raise ValueError(f"{name} gives other indices each time it is asked for the same epoch: draw from torch's")
    sampled = f"{name} {zlib.crc32(np.array(first, np.int64).tobytes()):08x}"
    return SampledOrder(len(sampler), batch_size, sampled=sampled, **options).check()


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
