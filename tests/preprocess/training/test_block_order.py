"""Epochs in which blocks of samples stay together: random, shared by shards, the same again, and resumed within."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from image_sets import DEFINITION, EVERYTHING
from stored_sets import assert_same, epochs_of, write_shards

from onestream.preprocess.training import Files, ImageLoader, read_tar
from onestream.preprocess.training.order import LastBatch, Order, order_of


def an_order(sizes: list[int], buffer: int, **options: Any) -> Order:
    """Of blocks of these sizes."""
    starts = np.cumsum([0, *sizes])
    given = {"batch_size": 1, "sampler": None, "shuffle": None, "train": False, "seed": 0, "last_batch": "partial"}
    given |= {"shard_id": 0, "num_shards": 1, "shuffle_buffer": buffer, "block_starts": starts[:-1]}
    return order_of(int(starts[-1]), **{**given, **options})


def indices(order: Order, epoch: int) -> list[int]:
    return [slot.index for batch in order.batches(epoch) for slot in batch if not slot.is_padding]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["partial", "pad", "drop"]),
)
def test_shards_share_the_blocks_of_an_epoch(
    sizes: list[int], buffer: int, size: int, shards: int, last_batch: LastBatch
) -> None:
    options: dict[str, Any] = {"batch_size": size, "num_shards": shards, "last_batch": last_batch}
    try:
        orders = [an_order(sizes, buffer, shard_id=shard, **options) for shard in range(shards)]
    except ValueError:
        assume(False)
    epochs = [indices(order, 1) for order in orders]
    everyone = [index for epoch in epochs for index in epoch]
    assert len(set(everyone)) == len(everyone)
    assert len({len(order.batches(1)) for order in orders}) == 1
    if last_batch != "drop":
        assert sorted(everyone) == list(range(sum(sizes)))
    assert epochs == [indices(order, 1) for order in orders]


def test_a_buffer_holds_few_blocks_and_no_shard_reads_them_all() -> None:
    """Of 40 blocks of 10, a buffer of 50 takes at most 7, and each of four shards 11: those in part at its ends."""
    for shard in range(4):
        order = indices(an_order([10] * 40, 50, shard_id=shard, num_shards=4), 0)
        assert len({index // 10 for index in order}) <= 11
        for begin in range(0, 100, 50):
            window = order[begin : begin + 50]
            assert len({index // 10 for index in window}) <= 7
            assert window != sorted(window)


def test_epochs_and_seeds_differ() -> None:
    orders = [indices(an_order([10] * 40, 50, seed=seed), epoch) for seed in range(2) for epoch in range(2)]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("backend", ["dali", "reference"])
def test_an_epoch_of_blocks_resumes_within(photos: Path, tmp_path: Path, backend: Any) -> None:
    """By other workers; with other blocks or another buffer it is refused."""
    shards = write_shards(tmp_path, Files.from_folder(photos), count=3)
    files = read_tar(shards, block_bytes=30_000)
    options: dict[str, Any] = {"batch_size": 2, "train": True, "augmentation": EVERYTHING, "backend": backend}
    with ImageLoader(DEFINITION, files, threads=2, shuffle_buffer=4, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [tuple(batch) for batch in batches]
    with ImageLoader(DEFINITION, files, threads=1, shuffle_buffer=4, **options) as loader:
        loader.load_state_dict(state)
        assert_same(epochs_of(loader), expected)
    with (
        ImageLoader(DEFINITION, files, shuffle_buffer=5, **options) as loader,
        pytest.raises(ValueError, match="the state is of a loader with shuffle_buffer 4; this one has 5"),
    ):
        loader.load_state_dict(state)
    with (
        ImageLoader(DEFINITION, read_tar(shards, block_bytes=1), shuffle_buffer=4, **options) as loader,
        pytest.raises(ValueError, match="the state is of a loader with blocks '"),
    ):
        loader.load_state_dict(state)


def test_wrong_options_are_refused(photos: Path, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, Files.from_folder(photos), count=1)
    blocks = read_tar(shards, block_bytes=1)
    for source, options, message in (
        (
            photos,
            {"shuffle_buffer": 5},
            "shuffle_buffer is for samples that are read in blocks: read_parquet, or r",
        ),
        (shards, {"shuffle_buffer": 5}, "shuffle_buffer is for samples that are read in blocks"),
        (blocks, {"shuffle_buffer": 5, "shuffle": False}, "shuffle_buffer shuffles; give it without sampler and"),
        (blocks, {"shuffle_buffer": 5, "sampler": [1]}, "shuffle_buffer shuffles; give it without sampler and"),
        (blocks, {"shuffle_buffer": 0}, "shuffle_buffer must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ImageLoader(DEFINITION, source, batch_size=2, **options)
    for options in ({"block_bytes": -1}, {"kept_bytes": 0}):
        with pytest.raises(ValueError, match="block_bytes must be 0 or more and kept_bytes 1 or more, got"):
            read_tar(shards, **options)
