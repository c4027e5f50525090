"""Logits to the best classes and their labels, features to embeddings: against plain Python and torch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onestream.postprocess.kinds.classification import top_k
from onestream.postprocess.kinds.embedding import embeddings
from onestream.postprocess.labels import read_labels

ROWS = st.integers(1, 4)
LOGITS = st.floats(-80, 80, width=32)


@st.composite
def logits_and_k(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    rows, classes = draw(ROWS), draw(st.integers(1, 12))
    # Few distinct values, so that equal scores are common.
    values = LOGITS | st.sampled_from([0.0, 1.0, -1.0])
    return draw(arrays(np.float32, (rows, classes), elements=values)), draw(st.integers(1, classes))


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


def test_large_logits_do_not_overflow_and_an_empty_batch_stays_empty() -> None:
    assert [found.shape for found in top_k(np.zeros((0, 3), np.float32), 2)] == [(0, 2)] * 2
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


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("tench\ngoldfish\n", ["tench", "goldfish"]),
        ("tench\ngoldfish", ["tench", "goldfish"]),
        ("tench\r\ngoldfish\r\n", ["tench", "goldfish"]),
        ("\ufefftench\n", ["tench"]),
        ("great white shark, white shark\nœuf\n鯉\n", ["great white shark, white shark", "œuf", "鯉"]),
        ("one\u2028line\nnext\n", ["one\u2028line", "next"]),
    ],
)
def test_one_name_a_line(tmp_path: Path, content: str, labels: list[str]) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(content.encode())
    assert read_labels(path) == labels


@pytest.mark.parametrize(("content", "line"), [("a\n\nb\n", 2), ("a\n  \n", 2), ("", 1), ("a\n\n", 2)])
def test_a_class_without_a_name_is_refused(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "labels.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"labels\.txt line {line} is empty"):
        read_labels(path)


def test_of_characters_a_space_is_one_and_another_encoding_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("a\n\u3000\n \n", encoding="utf-8")
    assert read_labels(path, spaces=True) == ["a", "\u3000", " "]
    path.write_text("a\n\n \n")
    with pytest.raises(ValueError, match=r"line 2 is empty"):
        read_labels(path, spaces=True)
    path.write_bytes("œuf".encode("utf-16"))
    with pytest.raises(ValueError, match=r"labels\.txt is not UTF-8: byte 0"):
        read_labels(path)


# Sums in another order than torch's: a few units in the last place of a value up to 1.
TOLERANCE = 1e-6
FEATURES = arrays(
    st.sampled_from([np.float16, np.float32]),
    st.tuples(st.integers(1, 3), st.integers(1, 300)),
    elements=st.floats(-1000, 1000, width=16),
)


@given(FEATURES)
@example(np.zeros((2, 5), np.float32))
def test_equal_to_torch(features: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.nn.functional.normalize(torch.from_numpy(features.astype(np.float32)), eps=1e-12).numpy()
    found = embeddings(features, normalize=True)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@given(FEATURES)
def test_without_normalization_they_stay_as_they_are(features: np.ndarray) -> None:
    found = embeddings(features[:, :, None, None], normalize=False)
    np.testing.assert_array_equal(found, features.astype(np.float32))
