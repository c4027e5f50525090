"""Every sample once per epoch over all shards, in equal numbers of batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onestream.preprocess.training.order import LastBatch, Order

COUNTS, SIZES, SHARDS, EPOCHS = st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3)


def orders(count: int, size: int, shards: int, last_batch: LastBatch) -> list[Order]:
    made = [
        Order(count, size, shuffle=True, seed=3, shard_id=shard, num_shards=shards, last_batch=last_batch)
        for shard in range(shards)
    ]
    try:
        return [order.check() for order in made]
    except ValueError:
        assume(False)
        raise


@given(COUNTS, SIZES, SHARDS, EPOCHS, st.sampled_from(["partial", "pad", "drop"]))
def test_shards_share_an_epoch(count: int, size: int, shards: int, epoch: int, last_batch: LastBatch) -> None:
    made = orders(count, size, shards, last_batch)
    epochs = [order.batches(epoch) for order in made]
    assert {len(batches) for batches in epochs} == {order.batches_per_epoch for order in made}
    slots = [slot for batches in epochs for batch in batches for slot in batch]
    seen = Counter(slot.index for slot in slots if not slot.is_padding)
    assert set(seen.values()) == {1}
    if last_batch == "drop":
        assert len(seen) == made[0].batches_per_epoch * size * shards
        assert count - len(seen) < size * shards + shards
    else:
        assert set(seen) == set(range(count))
    for batches in epochs:
        for batch in batches:
            assert 1 <= len(batch) <= size
            assert len(batch) == size or last_batch == "partial"
    padded = sum(slot.is_padding for slot in slots)
    assert padded == (made[0].batches_per_epoch * size * shards - count if last_batch == "pad" else 0)


@given(COUNTS, SIZES, EPOCHS)
def test_without_shuffling_the_order_is_the_datasets(count: int, size: int, epoch: int) -> None:
    batches = Order(count, size).check().batches(epoch)
    assert [slot.index for batch in batches for slot in batch] == list(range(count))
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)


def test_every_epoch_has_another_order_and_the_same_one_again() -> None:
    order = Order(50, 50, shuffle=True, seed=1)
    first, second = order.batches(0), order.batches(1)
    assert first != second
    assert first == order.batches(0)
    assert first != replace(order, seed=2).batches(0)


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
