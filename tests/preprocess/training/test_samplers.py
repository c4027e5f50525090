"""Samplers of PyTorch in loaders: weights, subsets and repeats, split over shards and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from image_sets import DEFINITION, EVERYTHING
from loader_kinds import COUNT, KINDS, Kind
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from onestream.preprocess.training import ImageLoader
from onestream.preprocess.training.order import order_of

WEIGHTS = [0.0, 1.0, 5.0, 0.0, 1.0, 1.0, 0.5, 3.0, 0.0, 0.0, 1.0, 1.0]
OPTIONS: dict[str, Any] = {"batch_size": 4, "train": True, "threads": 1, "seed": 5}


def samplers() -> dict[str, Any]:
    """Of 12 samples, each new as in another process."""
    return {
        "weighted": WeightedRandomSampler(WEIGHTS, 16),
        "own generator": WeightedRandomSampler(WEIGHTS, 16, generator=torch.Generator()),
        "subset": SubsetRandomSampler([1, 3, 5, 7, 9, 11, 2, 4]),
        "random": RandomSampler(range(12), replacement=True, num_samples=16),
        "list": [0, 0, 0, 5, 5, 1, 2, 3],
    }


def indices_of(loader: Any) -> list[list[int]]:
    return [batch.indices.tolist() for batch in loader]


@pytest.mark.parametrize("name", samplers())
def test_a_sampler_gives_the_samples_of_an_epoch(name: str, photos: Path) -> None:
    sampler = samplers()[name]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with ImageLoader(DEFINITION, photos, sampler=sampler, **OPTIONS) as loader:
        first, second = indices_of(loader), indices_of(loader)
        assert len(loader) == len(first) == len(sampler) // 4
        loader.set_epoch(0)
        assert [index for batch in first for index in batch] == list(loader.sampler)
    assert torch.equal(torch.get_rng_state(), before)
    flat = [index for batch in first for index in batch]
    if name == "list":
        assert flat == [index for batch in second for index in batch] == sampler
    else:
        assert first != second
    if name == "subset":
        assert sorted(flat) == [1, 2, 3, 4, 5, 7, 9, 11]
    if name in ("weighted", "own generator"):
        assert all(WEIGHTS[index] for index in flat)
    with ImageLoader(DEFINITION, photos, sampler=samplers()[name], **OPTIONS) as again:
        assert indices_of(again) == first
    with ImageLoader(DEFINITION, photos, sampler=samplers()[name], **{**OPTIONS, "seed": 6}) as other:
        assert (indices_of(other) == first) == (name == "list")


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 7), st.integers(1, 4),
    st.sampled_from(["partial", "pad", "drop"]), st.integers(0, 3),
)  # fmt: skip
def test_shards_share_what_a_sampler_gives(
    indices: list[int], size: int, shards: int, last_batch: Any, epoch: int
) -> None:
    """In its order, each repeat with its number, in equal numbers of batches."""
    options: dict[str, Any] = {"shuffle": None, "train": True, "seed": 0, "last_batch": last_batch}
    options |= {"sampler": indices, "num_shards": shards}
    try:
        epochs = [order_of(10, size, shard_id=one, **options).batches(epoch) for one in range(shards)]
    except ValueError:
        assume(False)
    assert len({len(batches) for batches in epochs}) == 1
    of_shards = [[slot for batch in batches for slot in batch if not slot.is_padding] for batches in epochs]
    for shard, slots in enumerate(of_shards):
        wanted = indices[shard::shards]
        assert [slot.index for slot in slots] == (wanted[: len(slots)] if last_batch == "drop" else wanted)
    drawn = [(slot.index, slot.drawn_in(epoch)) for slots in of_shards for slot in slots]
    assert len(set(drawn)) == len(drawn)
    assert all(slot.drawn_in(epoch) == epoch for slots in of_shards for slot in slots if not slot.repeat)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name != "lines"], ids=str)
def test_a_repeated_sample_is_varied_anew(kind: Kind, tmp_path: Path) -> None:
    source, _ = kind.write(tmp_path)
    assert COUNT > 2
    made = {}
    for shards in (1, 2):
        found: list[Any] = []
        for shard in range(shards):
            options: dict[str, Any] = {"shuffle": None, "shard_id": shard, "num_shards": shards, "threads": 2}
            with kind.open(source, batch_size=2, sampler=[2, 1, 2, 2], **options) as loader:
                found += [
                    (int(index), kind.fields(batch, place)[0].tobytes())
                    for batch in loader
                    for place, index in enumerate(batch.indices)
                ]
        assert [index for index, _ in sorted(found)] == [1, 2, 2, 2]
        assert len(set(found)) == 4
        made[shards] = sorted(found)
    assert made[1] == made[2]
    with kind.open(source, batch_size=2, threads=1) as loader:
        plain = {(index, fields[0].tobytes()) for index, fields in kind.collect(loader).items()}
    assert len(plain & set(made[1])) == 2  # the first of each


@pytest.mark.parametrize("name", ["weighted", "own generator", "subset", "list"])
def test_an_epoch_of_a_sampler_is_resumed_exactly(name: str, photos: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "batch_size": 2, "augmentation": EVERYTHING}
    with ImageLoader(DEFINITION, photos, sampler=samplers()[name], **options) as loader:
        list(loader)
        running = iter(loader)
        next(running)
        state = loader.state_dict()
        rest = list(running)
    with ImageLoader(DEFINITION, photos, sampler=samplers()[name], **options) as loader:
        loader.load_state_dict(state)
        for batch, expected in zip(loader, rest, strict=True):
            assert batch.indices.tolist() == expected.indices.tolist()
            np.testing.assert_array_equal(batch.images, expected.images)
    other = WeightedRandomSampler(WEIGHTS[::-1], len(samplers()[name]))
    refused = pytest.raises(ValueError, match=r"the state is of a loader with sampled '.*'; this one has 'Weighted")
    with ImageLoader(DEFINITION, photos, sampler=other, **options) as loader, refused:
        loader.load_state_dict(state)


def test_a_loader_without_a_sampler_refuses_the_state_of_one_with(photos: Path) -> None:
    with ImageLoader(DEFINITION, photos, sampler=RandomSampler(range(12)), **OPTIONS) as loader:
        next(iter(loader))
        state = loader.state_dict()
    refused = pytest.raises(ValueError, match="the state is of a loader with sampled; this one has none")
    with ImageLoader(DEFINITION, photos, **OPTIONS) as loader, refused:
        loader.load_state_dict(state)


class Own(torch.utils.data.Sampler[int]):
    """One that gives ``given``, in turn."""

    def __init__(self, length: int, *given: list[Any]) -> None:
        self.length, self.given, self.asked = length, given, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        return iter(self.given[self.asked % len(self.given)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": [0, 12]}, "list gives the index 12; expected 0 to 11"),
        ({"sampler": [-1]}, "list gives the index -1; expected 0 to 11"),
        ({"sampler": Own(3, [0, 1])}, "Own gives 2 indices; its length is 3"),
        ({"sampler": Own(2, [0, 1], [1, 0])}, "Own gives other indices each time"),
        ({"sampler": BatchSampler([0, 1, 2], 2, drop_last=False)}, "BatchSampler must give indices"),
        ({"sampler": DistributedSampler(range(12), 2, 0)}, "DistributedSampler splits an epoch itself"),
        ({"sampler": iter([1])}, "sampler must be a torch.utils.data.Sampler or a list .*got list_iterator"),
        ({"sampler": [0], "shuffle": True}, "give either sampler or shuffle"),
        ({"sampler": []}, "0 samples in 1 shards give no whole batch"),
    ],
)
def test_samplers_that_cannot_be_used_are_refused(options: Any, message: str, photos: Path) -> None:
    with pytest.raises(ValueError, match=message):
        ImageLoader(DEFINITION, photos, **{**OPTIONS, **options})


def test_an_error_of_a_sampler_is_its_own(photos: Path) -> None:
    with pytest.raises(ZeroDivisionError):  # of one that gives nothing
        ImageLoader(DEFINITION, photos, sampler=Own(1), **OPTIONS)
