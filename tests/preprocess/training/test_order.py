"""Every sample once per epoch over all shards, in equal numbers of batches; lines of similar width, blocks together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from image_sets import DEFINITION, EVERYTHING
from stored_sets import assert_same, write_shards

from onestream.preprocess.training import Files, ImageLoader, read_tar
from onestream.preprocess.training.order import LastBatch, Order, order_of
from onestream.preprocess.training.text.loader import LineOrder


def line_order(lines_a_picture: list[int], batch_size: int, **options: Any) -> LineOrder:
    pictures = np.repeat(np.arange(len(lines_a_picture)), lines_a_picture)
    widths = np.random.default_rng(0).integers(1, 400, len(pictures))
    return LineOrder(len(pictures), batch_size, pictures=pictures, widths=widths, **options)


def block_order(sizes: list[int], batch_size: int, buffer: int, **options: Any) -> Order:
    """Of blocks of these sizes."""
    starts = np.cumsum([0, *sizes])
    given: dict[str, Any] = {"sampler": None, "train": False, "last_batch": "partial", "shard_id": 0, "num_shards": 1}
    given |= {"seed": 0, **options, "shuffle": None, "shuffle_buffer": buffer, "block_starts": starts[:-1]}
    return order_of(int(starts[-1]), batch_size, **given)


def indices(order: Order, epoch: int) -> list[int]:
    return [slot.index for batch in order.batches(epoch) for slot in batch]


@given(
    st.sampled_from(["samples", "lines", "blocks"]), st.lists(st.integers(1, 12), min_size=1, max_size=20),
    st.integers(1, 9), st.integers(1, 5), st.integers(0, 3), st.booleans(),
    st.sampled_from(["partial", "pad", "drop"]), st.integers(1, 20),
)  # fmt: skip
def test_shards_share_an_epoch(
    of: str, parts: list[int], size: int, shards: int, epoch: int, shuffle: bool, last_batch: LastBatch, window: int
) -> None:
    """Of samples, of lines in pictures that have so many each, and of blocks of so many, in any window."""
    makes: dict[str, Callable[..., Order]] = {
        "samples": partial(Order, sum(parts), size),
        "lines": partial(line_order, parts, size, window=window),
        "blocks": partial(block_order, parts, size, window),
    }
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 3, "num_shards": shards, "last_batch": last_batch}
    try:
        made = [makes[of](shard_id=shard, **options).check() for shard in range(shards)]
    except ValueError:
        assume(False)
    epochs = [order.batches(epoch) for order in made]
    assert epochs == [order.batches(epoch) for order in made]
    count, batches_each = made[0].count, made[0].batches_per_epoch
    assert {len(batches) for batches in epochs} == {order.batches_per_epoch for order in made} == {batches_each}
    slots = [slot for batches in epochs for batch in batches for slot in batch]
    seen = Counter(slot.index for slot in slots if not slot.is_padding)
    assert set(seen.values()) == {1}
    if last_batch == "drop":
        assert len(seen) == batches_each * size * shards
        assert count - len(seen) < size * shards + shards
    else:
        assert set(seen) == set(range(count))
    for batch in itertools.chain(*epochs):
        assert 1 <= len(batch) <= size
        assert len(batch) == size or last_batch == "partial"
    padded = sum(slot.is_padding for slot in slots)
    assert padded == (batches_each * size * shards - count if last_batch == "pad" else 0)
    for order, batches in zip(made, epochs, strict=True):
        # Where two windows meet, one picture may be in both; padding repeats pictures of the beginning.
        if isinstance(order, LineOrder) and last_batch != "pad":
            windows = [
                {order.pictures[slot.index] for batch in one for slot in batch} for one in order.windows(batches)
            ]
            assert all(len(one & other) <= 1 for one, other in itertools.pairwise(windows))
            assert sum(len(one) for one in windows) <= len(set().union(*windows)) + len(windows) - 1


@pytest.mark.parametrize("shards", [1, 3])
def test_batches_of_a_window_are_similarly_wide_and_lines_of_a_picture_apart(shards: int) -> None:
    order = line_order([10] * 300, 32, shuffle=True, window=16, num_shards=shards)
    batches = [[slot.index for slot in batch] for batch in order.batches(0)]
    widest = sum(len(batch) * int(order.widths[batch].max()) for batch in batches)
    needed = sum(int(order.widths[batch].sum()) for batch in batches)
    # Uniform widths, 16 batches a window: a batch spans a sixteenth of them, its lines lack half of that on average.
    assert widest / needed < 1.1
    by_chance = np.random.default_rng(0).permutation(3000)[: sum(map(len, batches))].reshape(-1)
    unsorted = [by_chance[n : n + 32] for n in range(0, len(by_chance), 32)]
    assert sum(len(batch) * int(order.widths[batch].max()) for batch in unsorted) / needed > 1.7
    # Of the 32 lines of a batch, as many come from different pictures as if drawn from the window's 51.
    different = [len(set(order.pictures[batch])) for batch in batches if len(batch) == 32]
    assert np.mean(different) > 20


def test_shards_have_similarly_wide_batches_at_each_step() -> None:
    orders = [line_order([10] * 200, 25, shuffle=True, window=20, shard_id=n, num_shards=2) for n in range(2)]
    widths = np.array(
        [[order.widths[[slot.index for slot in batch]].mean() for batch in order.batches(0)] for order in orders]
    )
    assert np.corrcoef(widths)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order(4, 1, shard_id=2, num_shards=2), "shard_id must be from 0 to num_shards - 1 = 1, got 2"),
        (Order(3, 4, last_batch="drop"), "3 samples in 1 shards give no whole batch of 4"),
        (Order(3, 1, num_shards=2), "3 samples cannot give 2 shards equal numbers of batches of 1"),
        (Order(1, 1, num_shards=2, last_batch="pad"), "use 'drop', or fewer shards"),
    ],
)
def test_what_cannot_be_is_refused(order: Order, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order.check()


def test_a_buffer_holds_few_blocks_and_no_shard_reads_them_all() -> None:
    """Of 40 blocks of 10, a buffer of 50 takes at most 7, and each of four shards 11: those in part at its ends."""
    for shard in range(4):
        order = indices(block_order([10] * 40, 1, 50, shard_id=shard, num_shards=4), 0)
        assert len({index // 10 for index in order}) <= 11
        for begin in range(0, 100, 50):
            window = order[begin : begin + 50]
            assert len({index // 10 for index in window}) <= 7
            assert window != sorted(window)
    orders = [indices(block_order([10] * 40, 1, 50, seed=seed), epoch) for seed in range(2) for epoch in range(2)]
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
        assert_same([tuple(batch) for batch in loader], expected)
    other_blocks = read_tar(shards, block_bytes=1)
    for source, buffer, of in ((files, 5, "shuffle_buffer 4; this one has 5"), (other_blocks, 4, "blocks '")):
        refused = pytest.raises(ValueError, match=f"the state is of a loader with {of}")
        with ImageLoader(DEFINITION, source, shuffle_buffer=buffer, **options) as loader, refused:
            loader.load_state_dict(state)


def test_wrong_options_of_blocks_are_refused(photos: Path, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, Files.from_folder(photos), count=1)
    blocks = read_tar(shards, block_bytes=1)
    for source, options, message in (
        (photos, {"shuffle_buffer": 5}, "shuffle_buffer is for samples that are read in blocks: read_parquet, or r"),
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
