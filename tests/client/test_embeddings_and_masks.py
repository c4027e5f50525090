"""Answers of embeddings and segmentations: what is read, and what a server may not say."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onestream.client import Embedding, Outputs, Segmentation, UnexpectedResponse, answers


def png(size_hw: tuple[int, int] = (2, 3), mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size_hw[::-1]).save(file, "PNG")
    return file.getvalue()


def texts(*values: object) -> np.ndarray:
    array = np.empty((1, len(values)), object)
    array[0] = values
    return array


def masks(**changed: Any) -> dict[str, Any]:
    tensors = {
        "masks": texts(png()),
        "class_ids": np.array([[0, 1]], np.int32),
        "labels": texts(b"sky", b"ground"),
        "image_size": np.array([[2, 3]], np.int32),
    }
    return {name: value for name, value in (tensors | changed).items() if value is not None}


def result(tensors: dict[str, Any]) -> Any:
    return answers.result("m", tensors, "id", 1.5)


def embedding(*values: float) -> Embedding:
    found = result({"embedding": np.array([values], np.float32)})
    assert isinstance(found, Embedding)
    return found


def test_similarity_is_the_cosine() -> None:
    one = embedding(3, 4)
    assert one.similarity(embedding(30, 40)) == pytest.approx(1)
    assert one.similarity(embedding(-3, -4)) == pytest.approx(-1)
    assert one.similarity(embedding(4, -3)) == pytest.approx(0)
    assert one.similarity(embedding(4, 3)) == pytest.approx(24 / 25)
    assert one.similarity(embedding(0, 0)) == 0
    with pytest.raises(ValueError, match="one embedding has 2 values, the other 3"):
        one.similarity(embedding(1, 2, 3))
    assert one.to_dict() == {"model": "m", "request_id": "id", "latency_ms": 1.5, "embedding": [3, 4]}


@pytest.mark.parametrize(
    "vectors",
    [np.zeros((1, 0), np.float32), np.zeros((2, 4), np.float32), np.zeros(4, np.float32), np.zeros((1, 4), np.int32)]
    + [np.full((1, 4), bad, np.float32) for bad in (np.nan, np.inf)],
)
def test_what_is_no_embedding(vectors: np.ndarray) -> None:
    with pytest.raises(UnexpectedResponse, match=r"expected .*(shape|finite floats)"):
        result({"embedding": vectors})


def test_masks_of_classes_and_of_probabilities() -> None:
    classes = result(masks())
    assert isinstance(classes, Segmentation)
    np.testing.assert_array_equal(classes.classes(), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="expected output: probabilities"):
        classes.probabilities()
    probabilities = result(masks(masks=texts(png(), png())))
    assert probabilities.probabilities().shape == (2, 2, 3)
    with pytest.raises(ValueError, match="expected output: classes"):
        probabilities.classes()
    plain = probabilities.to_dict()
    assert (plain["class_ids"], plain["labels"], plain["image_size"]) == ([0, 1], ["sky", "ground"], [2, 3])
    assert len(plain["masks"]) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": None}, "for any kind use predict"),
        ({"labels": texts(b"sky")}, "for any kind use predict"),
        ({"masks": texts(png(), png(), png())}, "for any kind use predict"),
        ({"masks": np.array(png(), object)}, "for any kind use predict"),
        ({"masks": texts()}, "for any kind use predict"),
        ({"image_size": np.array([[2, 3, 1]], np.int32)}, "for any kind use predict"),
        ({"image_size": np.array([[2, 0]], np.int32)}, "a height and width of 1 to"),
        ({"image_size": np.array([[2.0, 3.0]], np.float32)}, "a height and width of 1 to"),
        ({"class_ids": np.array([[0, -1]], np.int32)}, "whole numbers from 0 on"),
        ({"masks": texts(png((3, 2)))}, "not all PNG files, 8-bit gray, of the picture's 3x2"),
        ({"masks": texts(png(mode="RGB"))}, "not all PNG files"),
        ({"masks": texts(b"")}, "not all PNG files"),
        ({"masks": np.zeros((1, 1), np.float32)}, "not all PNG files"),
        ({"image_size": np.array([[2, 2**40]], np.int64)}, "a height and width of 1 to 2147483647"),
        ({"labels": texts(b"sky", b"\xff")}, "no UTF-8"),
    ],
)
def test_what_is_no_segmentation(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UnexpectedResponse, match=message):
        answers.segmentation("m", masks(**changed), "id", 1.5)


def test_other_outputs_stay_outputs() -> None:
    assert isinstance(result({"features": np.zeros((1, 3), np.float32)}), Outputs)
