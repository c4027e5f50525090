"""Logits to the best classes, against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.postprocess.kinds.classification import top_k

ROWS = st.integers(1, 4)
LOGITS = st.floats(-80, 80, width=32)


@st.composite
def logits_and_k(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    rows, classes = draw(ROWS), draw(st.integers(1, 12))
    # Few distinct values, so that equal scores are common.
    values = draw(st.lists(st.one_of(LOGITS, st.sampled_from([0.0, 1.0, -1.0])), min_size=rows * classes,
                           max_size=rows * classes))  # fmt: skip
    return np.array(values, np.float32).reshape(rows, classes), draw(st.integers(1, classes))


@given(logits_and_k())
def test_softmax_and_order_are_those_of_plain_python(case: tuple[np.ndarray, int]) -> None:
    logits, k = case
    scores, class_ids = top_k(logits, k)
    assert scores.dtype == np.float32
    assert class_ids.dtype == np.int32
    assert scores.shape == class_ids.shape == (len(logits), k)
    for row, row_scores, row_ids in zip(logits.tolist(), scores, class_ids, strict=True):
        highest = max(row)
        weights = [math.exp(value - highest) for value in row]
        best = sorted(range(len(row)), key=lambda index: (-row[index], index))[:k]
        assert row_ids.tolist() == best
        np.testing.assert_allclose(row_scores, [weights[index] / sum(weights) for index in best], rtol=1e-5, atol=1e-9)


@given(logits_and_k())
def test_none_returns_the_logits_and_all_classes_sum_to_one(case: tuple[np.ndarray, int]) -> None:
    logits, k = case
    scores, class_ids = top_k(logits, k, activation="none")
    np.testing.assert_array_equal(scores, np.take_along_axis(logits, class_ids, axis=1))
    assert (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_allclose(top_k(logits, logits.shape[1])[0].sum(axis=1), 1, rtol=1e-5)


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = np.random.default_rng(0).normal(size=(16, 1000)).astype(np.float32) * 9
    scores, class_ids = top_k(logits, 5)
    for row in range(16):
        alone_scores, alone_ids = top_k(logits[row : row + 1], 5)
        np.testing.assert_array_equal(alone_scores[0], scores[row])
        np.testing.assert_array_equal(alone_ids[0], class_ids[row])


def test_large_logits_do_not_overflow() -> None:
    scores, class_ids = top_k(np.array([[1e4, 0, -1e4]], np.float32), 3)
    np.testing.assert_array_equal(scores, [[1, 0, 0]])
    np.testing.assert_array_equal(class_ids, [[0, 1, 2]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_float_comes_out_as_float32(dtype: type) -> None:
    logits = np.array([[0.5, 2, 1]], dtype)
    scores, class_ids = top_k(logits, 2, activation="none")
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, [[2, 1]])
    np.testing.assert_array_equal(class_ids, [[1, 2]])
    np.testing.assert_array_equal(logits, np.array([[0.5, 2, 1]], dtype))


@pytest.mark.parametrize(
    ("shape", "k", "said"),
    [
        *(((1, 3), k, f"from 1 to 3, the number of classes, got {k}") for k in (0, -1, 4)),
        *((shape, 1, r"\(batch, classes\)") for shape in ((3,), (1, 3, 1), ())),
    ],
)
def test_other_shapes_and_k_outside_the_classes_are_refused(shape: tuple[int, ...], k: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        top_k(np.zeros(shape, np.float32), k)


def test_an_empty_batch_stays_empty() -> None:
    assert [found.shape for found in top_k(np.zeros((0, 3), np.float32), 2)] == [(0, 2)] * 2
