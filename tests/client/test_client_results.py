"""What the client makes of a pipeline's outputs, of whatever kind, and what can be done with detections."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from both_clients import Ask, Connect, asked
from client_fakes import FakeTransport, classification, detections, kind_of
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image

from onestream.client import (
    Classification,
    Detection,
    Detections,
    Embedding,
    Outputs,
    Segmentation,
    Tensors,
    UnexpectedResponse,
    kinds,
)
from onestream.client.kinds.drawing import color_of

TWO = detections(("cat", 17, 0.875, (10, 20, 110, 90)), ("café cup", 47, 0.5, (0, 0, 40.25, 30.5)))
NONE = detections()


def detected(tensors: Tensors = TWO) -> Detections:
    return asked(tensors, "detect")


# ---- results by kind ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["detect", "predict"])
def test_detections_are_typed(ask: Ask, call: str) -> None:
    result = ask(TWO, call)
    assert isinstance(result, Detections)
    assert (result.boxes.dtype, result.scores.dtype, result.class_ids.dtype) == (np.float32, np.float32, np.int32)
    assert (result.boxes.shape, result.image_size, len(result)) == ((2, 4), (100, 200), 2)
    assert list(result) == [
        Detection((10, 20, 110, 90), "cat", 17, 0.875),
        Detection((0, 0, 40.25, 30.5), "café cup", 47, 0.5),
    ]
    assert result.model == ("detect" if call == "detect" else "any")
    assert result.request_id
    assert result.latency_ms >= 0


def test_predict_gives_the_result_of_the_kind(ask: Ask, connect: Connect) -> None:
    result = ask(classification(("espresso", 967, 0.95)), "predict")
    assert isinstance(result, Classification)
    assert (result.top.label, result.model) == ("espresso", "any")
    # What a network calls its outputs is its own affair, where nobody says what they are.
    for tensors in (
        TWO,
        {"matte": np.zeros((1, 4, 5), np.uint8)},
        {"boxes": np.zeros((1, 9, 4)), "scores": np.zeros((1, 9, 2))},
        {"masks": np.zeros((1, 3, 4, 5)), "iou_predictions": np.zeros((1, 3))},
        {"embedding": np.zeros((1, 7, 9)), "logits": np.zeros((1, 9))},
    ):
        with connect(transport=FakeTransport(lambda *_, said=tensors: said)) as client:
            result = client.predict(b"image", pipeline="any")
        assert isinstance(result, Outputs)
        assert result.tensors is tensors


def test_outputs_become_json() -> None:
    texts = np.array([[b"caf\xc3\xa9", b"\xff"]], object)
    tensors = {"a": np.array([[1, 2]], np.uint8), "b": texts, "c": np.array([[0.5, np.nan, -np.inf]], np.float32)}
    result = Outputs(tensors=tensors, model="m", request_id="7", latency_ms=1.5)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == {
        "model": "m",
        "request_id": "7",
        "latency_ms": 1.5,
        "tensors": {"a": [[1, 2]], "b": [["café", "�"]], "c": [[0.5, None, None]]},
    }


# ---- answers that break the contract --------------------------------------------------------------------------------


def changed(**outputs: Any) -> Tensors:
    return {**TWO, **outputs}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "nothing"),
        (classification(("espresso", 967, 0.95)), "boxes of [1, n, 4]"),
        (changed(boxes=np.zeros((1, 3, 4), np.float32)), "'boxes': [1, 3, 4]"),
        (changed(scores=np.zeros((1, 2, 1), np.float32)), "'scores': [1, 2, 1]"),
        (changed(image_size=np.array([100, 200], np.int32)), "'image_size': [2]"),
        (changed(boxes=np.zeros((1, 2, 4), np.int32)), "boxes of int32"),
        (changed(boxes=np.full((1, 2, 4), np.nan, np.float32)), "expected finite floats"),
        (changed(image_size=np.array([[0, 200]], np.int32)), "a picture of [0, 200]"),
        (changed(image_size=np.array([[100, 200]], np.float32)), "whole numbers"),
        (changed(scores=np.array([[0.2, 0.9]], np.float32)), "the best first"),
        (changed(scores=np.array([[0.2, np.nan]], np.float32)), "expected finite floats"),
        (changed(scores=np.array([[2, 1]], np.int32)), "scores of int32"),
        (changed(class_ids=np.array([[-1, 2]], np.int32)), "whole numbers from 0 on"),
        (changed(labels=np.array([[1, 2]], np.int32)), "labels of int32"),
        (changed(labels=np.array([[b"cat", b"\xff"]], object)), "no UTF-8"),
    ],
)
def test_what_no_detector_may_answer(ask: Ask, tensors: Tensors, words: str) -> None:
    with pytest.raises(UnexpectedResponse) as error:
        ask(tensors, "detect")
    assert words in str(error.value)
    assert "'detect'" in str(error.value)
    assert error.value.request_id


# ---- embeddings and masks -------------------------------------------------------------------------------------------


def png(size_hw: tuple[int, int] = (2, 3), mode: str = "L") -> bytes:
    return encode(Image.new(mode, size_hw[::-1]), "PNG")


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


def said(tensors: dict[str, Any], kind: str = "") -> Any:
    return kinds.read(kind or kind_of(tensors), "m", tensors, "id", 1.5)


def embedding(*values: float) -> Embedding:
    return said({"embedding": np.array([values], np.float32)})


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
    with pytest.raises(UnexpectedResponse, match=r"expected .*(values|finite floats)"):
        said({"embedding": vectors})


def test_masks_of_classes_and_of_probabilities() -> None:
    classes = said(masks())
    np.testing.assert_array_equal(classes.classes(), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="expected output: probabilities"):
        classes.probabilities()
    probabilities = said(masks(masks=texts(png(), png())))
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
        ({"masks": texts(png(), png(), png())}, "3 masks, expected 1 or 2"),
        ({"masks": np.array(png(), object)}, "for any kind use predict"),
        ({"masks": texts()}, "for any kind use predict"),
        ({"image_size": np.array([[2, 3, 1]], np.int32)}, "for any kind use predict"),
        ({"image_size": np.array([[2, 0]], np.int32)}, "sides of 1 to"),
        ({"image_size": np.array([[2.0, 3.0]], np.float32)}, "whole numbers"),
        ({"class_ids": np.array([[0, -1]], np.int32)}, "whole numbers from 0 on"),
        ({"masks": texts(png((3, 2)))}, "not all PNG files, 8-bit gray, of the picture's 3x2"),
        ({"masks": texts(png(mode="RGB"))}, "not all PNG files"),
        ({"masks": texts(b"")}, "not all PNG files"),
        ({"masks": np.zeros((1, 1), np.float32)}, "expected strings"),
        ({"image_size": np.array([[2, 2**40]], np.int64)}, "sides of 1 to 2147483647"),
        ({"labels": texts(b"sky", b"\xff")}, "no UTF-8"),
    ],
)
def test_what_is_no_segmentation(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UnexpectedResponse, match=message):
        Segmentation.from_tensors("m", masks(**changed), "id", 1.5)


# ---- what stages that read text answer alone -------------------------------------------------------------------------


def test_a_text_and_a_rotation_are_plain_values() -> None:
    score = np.array([[0.75]], np.float32)
    each = texts(np.float32([1, 0.5]).tobytes())
    read = said({"texts": texts("né".encode()), "scores": score, "character_scores": each}, "text")
    assert (read.text, read.score, read.character_scores.tolist()) == ("né", 0.75, [1, 0.5])
    assert read.records(is_flat=True) == [{"text": "né", "score": 0.75, "character_scores": "[1.0, 0.5]"}]
    assert (read.caption(), said({"texts": texts(b""), "scores": score}, "text").summary()) == (["né 0.75"], [])
    turned = said({"degrees": np.array([[90]], np.int32), "scores": score}, "rotation")
    assert (turned.degrees, turned.score, turned.caption()) == (90, 0.75, ["90° 0.75"])
    with pytest.raises(UnexpectedResponse, match="character_scores of no float32"):
        said({"texts": texts(b"n"), "scores": score, "character_scores": texts(b"\0\0\0")}, "text")


# ---- what can be done with detections -------------------------------------------------------------------------------


def test_supervision_gets_the_same_objects() -> None:
    pytest.importorskip("supervision")
    result = detected()
    theirs = result.to_supervision()
    assert theirs.xyxy.tolist() == result.boxes.tolist()
    assert theirs.confidence.tolist() == [0.875, 0.5]
    assert theirs.class_id.tolist() == [17, 47]
    assert theirs.data["class_name"].tolist() == ["cat", "café cup"]
    assert theirs[theirs.class_id == 17].xyxy.tolist() == [[10, 20, 110, 90]]
    theirs.xyxy[:] = 0
    assert result.boxes[0].tolist() == [10, 20, 110, 90], "what they change stays theirs"
    nothing = detected(NONE).to_supervision()
    assert len(nothing) == 0
    assert nothing.xyxy.shape == (0, 4)


def test_supervisions_names_are_there_too() -> None:
    result = replace(detected(), track_ids=np.array([7, -1], np.int32))
    assert result.xyxy is result.boxes
    assert result.confidence is result.scores
    assert result.class_id is result.class_ids
    assert result.tracker_id is result.track_ids
    assert result[result.tracker_id > 0].labels == ("cat",)
    assert detected().tracker_id is None


@pytest.mark.parametrize("changed", [{"image_size": (5, 5)}, {"track_ids": np.array([1, 2], np.int32)}])
def test_detections_of_two_pictures_or_partly_tracked_are_not_joined(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"objects with different {next(iter(changed))} cannot be concatenated"):
        Detections.concat([detected(), replace(detected(), **changed)])


def test_supervision_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[detect\]'"):
        detected().to_supervision()


# ---- drawing --------------------------------------------------------------------------------------------------------

GRAY = (90, 90, 90)


def one(box: tuple[float, float, float, float], size: tuple[int, int], label: str = "cat") -> Detections:
    return detected(detections((label, 17, 0.9, box), size_hw=size[::-1]))


@pytest.mark.parametrize("size", [(300, 200), (1600, 1200)])
def test_a_box_is_drawn_within_its_edges(size: tuple[int, int]) -> None:
    picture = Image.new("RGB", size, GRAY)
    width, height = size
    box = (width * 0.5, height * 0.5, width * 0.75, height * 0.9)
    drawn = one(box, size).draw(picture)
    assert set(picture.getcolors() or ()) == {(width * height, GRAY)}, "a copy is drawn on"
    seen = np.asarray(drawn)
    x0, y0, x1, y1 = map(round, box)
    color = color_of(17)
    line = max(3, min(size) // 200)
    for part in (
        seen[y0 : y0 + line, x0:x1],
        seen[y1 - line : y1, x0:x1],
        seen[y0:y1, x0 : x0 + line],
        seen[y0:y1, x1 - line : x1],
    ):
        assert (part == color).all()
    assert (seen[y1:] == GRAY).all()
    assert (seen[:, x1:] == GRAY).all()
    assert (seen[:, :x0] == GRAY).all()
    middle = seen[y0 + 3 * line : y1 - 3 * line, x0 + 3 * line : x1 - 3 * line]
    assert (middle == GRAY).all(), "the object stays visible"
    name = seen[:y0]
    rows = np.flatnonzero((name == color).all(axis=2).any(axis=1))
    # High enough to be read on a screen that shows the whole picture: a fiftieth of it, or 12 pixels.
    assert max(12, height / 50) <= len(rows) <= height / 10
    assert (name == (0, 0, 0)).all(axis=2).any() or (name == (255, 255, 255)).all(axis=2).any()


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 300, 200),
        (0, 0, 40, 8),
        (290, 190, 300, 200),
        (5, 5, 5, 5),
        (0, 195, 300, 200),
        (-5, -5, 400, 400),
        (-1e30, -1e30, 1e30, 1e30),
    ],
)
def test_a_name_stays_within_the_picture(box: tuple[float, float, float, float]) -> None:
    drawn = np.asarray(one(box, (300, 200)).draw(Image.new("RGB", (300, 200), GRAY)))
    named = (drawn == color_of(17)).all(axis=2)
    # Of a filled area: no line is as thick.
    filled = named[:, :-8] & named[:, 8:]
    assert filled.sum() > 0
    assert drawn.shape == (200, 300, 3)


def test_names_do_not_cover_one_another() -> None:
    """Three names of the same box find room; the fourth, of the worst object, is left out, and its box is not."""
    box = (100, 80, 200, 180)
    size = (300, 260)
    found = [(name, class_id, 0.9 - class_id / 10, box) for class_id, name in enumerate("abcd")]
    drawn = np.asarray(detected(detections(*found, size_hw=size[::-1])).draw(Image.new("RGB", size, GRAY)))

    def areas(class_id: int) -> int:
        named = (drawn == color_of(class_id)).all(axis=2)
        return int((named[:, :-8] & named[:, 8:] & np.roll(named, 4, axis=0)[:, 8:]).sum())

    assert [areas(class_id) > 50 for class_id in range(4)] == [True, True, True, False]


def test_a_picture_too_small_for_a_name_has_boxes_only() -> None:
    drawn = np.asarray(one((0, 0, 10, 10), (10, 10)).draw(Image.new("RGB", (10, 10), GRAY)))
    assert (drawn[0] == color_of(17)).all()
    assert (drawn[4:6, 4:6] == GRAY).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_a_picture_of_any_mode_is_drawn_on_in_rgb(mode: str) -> None:
    drawn = one((10, 40, 90, 80), (100, 100)).draw(Image.new(mode, (100, 100)))
    assert drawn.mode == "RGB"
    assert tuple(drawn.getpixel((50, 40))) == color_of(17)  # type: ignore[arg-type]


def test_what_is_no_pil_image_is_not_drawn_on() -> None:
    with pytest.raises(TypeError, match="draw takes a PIL image, got str"):
        one((10, 40, 90, 80), (100, 100)).draw("photo.jpg")  # type: ignore[arg-type]


def test_a_turned_picture_is_drawn_upright() -> None:
    """Stored lying; its EXIF orientation says that it stands, and boxes are of the standing picture."""
    picture = Image.new("RGB", (200, 100), GRAY)
    picture.getexif()[0x0112] = 6
    drawn = one((10, 60, 90, 180), (100, 200)).draw(picture)
    assert drawn.size == (100, 200)
    assert drawn.getexif().get(0x0112, 1) == 1
    assert tuple(drawn.getpixel((50, 179))) == color_of(17)  # type: ignore[arg-type]


@given(st.integers(0, 10_000))
def test_neighbouring_classes_have_colours_that_differ(class_id: int) -> None:
    one, other = color_of(class_id), color_of(class_id + 1)
    assert all(0 <= level <= 255 for level in one)
    assert math.dist(one, other) > 100
