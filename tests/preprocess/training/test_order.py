"""Every sample once per epoch over all shards, in equal numbers of batches; of lines, in batches of similar width."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onestream.preprocess.training.order import LastBatch, Order
from onestream.preprocess.training.text.loader import LineOrder

COUNTS, SIZES, SHARDS, EPOCHS = st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3)
# Of lines their number in each picture, of which a window is made of some batches.
DATASETS = COUNTS | st.lists(st.integers(1, 12), min_size=1, max_size=20)


def an_order(dataset: int | list[int], batch_size: int, **options: Any) -> Order:
    """Of so many samples, or of pictures with so many lines of any width each."""
    if isinstance(dataset, int):
        return Order(dataset, batch_size, **options)
    return line_order(dataset, batch_size, **options)


def line_order(lines_a_picture: list[int], batch_size: int, **options: Any) -> LineOrder:
    count = sum(lines_a_picture)
    return LineOrder(
        count,
        batch_size,
        pictures=np.repeat(np.arange(len(lines_a_picture)), lines_a_picture),
        widths=np.random.default_rng(0).integers(1, 400, count),
        **options,
    )


@given(DATASETS, SIZES, SHARDS, EPOCHS, st.booleans(), st.sampled_from(["partial", "pad", "drop"]), st.integers(1, 4))
def test_shards_share_an_epoch(
    dataset: int | list[int],
    size: int,
    shards: int,
    epoch: int,
    shuffle: bool,
    last_batch: LastBatch,
    window: int,
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 3, "num_shards": shards, "last_batch": last_batch}
    if isinstance(dataset, list):
        options["window"] = window
    made = [an_order(dataset, size, shard_id=shard, **options) for shard in range(shards)]
    try:
        for order in made:
            order.check()
    except ValueError:
        assume(False)
    epochs = [order.batches(epoch) for order in made]
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


@given(DATASETS, SIZES, EPOCHS)
def test_without_shuffling_the_order_is_the_datasets(dataset: int | list[int], size: int, epoch: int) -> None:
    order = an_order(dataset, size).check()
    batches = order.batches(epoch)
    assert [slot.index for batch in batches for slot in batch] == list(range(order.count))
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)


@pytest.mark.parametrize("dataset", [200, [5] * 40])
def test_every_epoch_has_another_order_and_the_same_one_again(dataset: int | list[int]) -> None:
    order = an_order(dataset, 8, shuffle=True, seed=1)
    first, second = order.batches(0), order.batches(1)
    assert first != second
    assert first == order.batches(0)
    assert first != replace(order, seed=2).batches(0)


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
        (Order(4, 0), "batch_size must be at least 1, got 0"),
        (Order(4, 1, shard_id=2, num_shards=2), "shard_id must be from 0 to num_shards - 1 = 1, got 2"),
        (Order(4, 1, last_batch="keep"), "last_batch must be 'partial', 'pad' or 'drop', got 'keep'"),  # type: ignore[arg-type]
        (Order(3, 4, last_batch="drop"), "3 samples in 1 shards give no whole batch of 4"),
        (Order(3, 1, num_shards=2), "3 samples cannot give 2 shards equal numbers of batches of 1"),
        (Order(1, 1, num_shards=2, last_batch="pad"), "use 'drop', or fewer shards"),
    ],
)
def test_what_cannot_be_is_refused(order: Order, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order.check()
