"""Every line once per epoch over all shards, few pictures in two windows, and batches of similar width."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onestream.preprocess.training.order import LastBatch
from onestream.preprocess.training.text.order import LineOrder


def line_order(lines_a_picture: list[int], batch_size: int, **options: Any) -> LineOrder:
    count = sum(lines_a_picture)
    return LineOrder(
        count,
        batch_size,
        pictures=np.repeat(np.arange(len(lines_a_picture)), lines_a_picture),
        widths=np.random.default_rng(0).integers(1, 400, count),
        **options,
    )


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=20),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["partial", "pad", "drop"]),
)
def test_shards_share_an_epoch(
    lines: list[int], size: int, shards: int, window: int, epoch: int, shuffle: bool, last_batch: LastBatch
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 3, "window": window, "last_batch": last_batch}
    made = [line_order(lines, size, shard_id=shard, num_shards=shards, **options) for shard in range(shards)]
    try:
        for order in made:
            order.check()
    except ValueError:
        assume(False)
    epochs = [order.batches(epoch) for order in made]
    assert {len(batches) for batches in epochs} == {order.batches_per_epoch for order in made}
    assert all(1 <= len(batch) <= size for batches in epochs for batch in batches)
    slots = [slot for batches in epochs for batch in batches for slot in batch]
    seen = Counter(slot.index for slot in slots if not slot.is_padding)
    assert set(seen.values()) == {1}
    if last_batch == "drop":
        assert sum(lines) - len(seen) < size * shards + shards
    else:
        assert len(seen) == sum(lines)
    for order, batches in zip(made, epochs, strict=True):
        windows = [{order.pictures[slot.index] for batch in one for slot in batch} for one in order.windows(batches)]
        # Where two windows meet, one picture may be in both; padding repeats pictures of the beginning.
        if last_batch != "pad":
            assert all(len(one & other) <= 1 for one, other in itertools.pairwise(windows))
            assert sum(len(one) for one in windows) <= len(set().union(*windows)) + len(windows) - 1


def test_without_shuffling_the_order_is_the_datasets() -> None:
    batches = line_order([3, 1, 5, 2], 4, window=2).batches(7)
    assert [[slot.index for slot in batch] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_an_epoch_follows_from_seed_and_epoch() -> None:
    def epoch(number: int, seed: int) -> list[list[int]]:
        batches = line_order([5] * 40, 8, shuffle=True, seed=seed, window=4).batches(number)
        return [[slot.index for slot in batch] for batch in batches]

    assert epoch(1, 2) == epoch(1, 2)
    assert epoch(1, 2) != epoch(2, 2)
    assert epoch(1, 2) != epoch(1, 3)


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
