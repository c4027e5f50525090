"""What the client makes of a pipeline's outputs, of whatever kind, and what can be done with results."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from both_clients import Connect, asked
from client_fakes import FakeTransport, classification, detections, kind_of, reading, sorted_objects
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image

from onestream.client import (
    Classification,
    Detection,
    Detections,
    Embedding,
    OnestreamError,
    Outputs,
    Reading,
    Regions,
    Segmentation,
    Tensors,
    UnexpectedResponse,
    kinds,
)

ESPRESSO = classification(("espresso", 967, 0.95), ("café au lait", 1, 0.03))
TWO = detections(("cat", 17, 0.875, (10, 20, 110, 90)), ("café cup", 47, 0.5, (0, 0, 40.25, 30.5)))
SIGN = ((20, 10), (120, 30), (115, 50), (15, 30))
TEXT = reading(("EXIT", 0.96875, SIGN), ("出口 →", 0.5, ((10, 60), (60, 60), (60, 80), (10, 80))), left_out=3)
OBJECTS = sorted_objects(("cup", "espresso", (10, 20, 110, 90)), ("table", "café", (0, 0, 40.25, 30.5)))
NAMES = ("scores", "class_ids", "labels", "detect_scores", "detect_class_ids", "detect_labels")
ONE_CLASS = {**OBJECTS, **{name: OBJECTS[name][..., 0] for name in NAMES[:3]}}
"""Each region has one, without a dimension of classes."""


def png(size_hw: tuple[int, int] = (2, 3), mode: str = "L") -> bytes:
    return encode(Image.new(mode, size_hw[::-1]), "PNG")


def texts(*values: object) -> np.ndarray:
    array = np.empty((1, len(values)), object)
    array[0] = values
    return array


MASKS = {
    "masks": texts(png()),
    "class_ids": np.array([[0, 1]], np.int32),
    "labels": texts(b"sky", b"ground"),
    "image_size": np.array([[2, 3]], np.int32),
}


def but(tensors: Tensors, **changed: Any) -> Tensors:
    """These with others in their place; None takes one away."""
    return {name: array for name, array in {**tensors, **changed}.items() if array is not None}


def read(tensors: Tensors, kind: str = "") -> Any:
    return kinds.read(kind or kind_of(tensors), "m", tensors, "id", 1.5)


# ---- results by kind ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "tensors", "kind"),
    [
        ("classify", ESPRESSO, Classification),
        ("detect", TWO, Detections),
        ("embed", {"embedding": np.ones((1, 3), np.float32)}, Embedding),
        ("segment", MASKS, Segmentation),
        ("read", TEXT, Reading),
    ],
)
def test_a_call_and_predict_give_the_result_of_the_kind(
    call: str, tensors: Tensors, kind: type, connect: Connect
) -> None:
    for asked_by, model in ((call, call), ("predict", "any")):
        result = asked(tensors, asked_by, connect)
        assert (type(result), result.model) == (kind, model)
        assert result.request_id
        assert result.latency_ms >= 0
    for others in (OBJECTS, ONE_CLASS, {}, *([] if kind is Reading else [TEXT])):
        with pytest.raises(UnexpectedResponse, match=f"model '{call}' answered .*for any kind use predict") as error:
            asked(others, call, connect)
        assert error.value.request_id


def test_what_a_network_calls_its_outputs_is_its_own_affair_where_nobody_says_what_they_are(connect: Connect) -> None:
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
    names = np.array([[b"caf\xc3\xa9", b"\xff"]], object)
    tensors = {"a": np.array([[1, 2]], np.uint8), "b": names, "c": np.array([[0.5, np.nan, -np.inf]], np.float32)}
    result = Outputs(tensors=tensors, model="m", request_id="7", latency_ms=1.5)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == {
        "model": "m",
        "request_id": "7",
        "latency_ms": 1.5,
        "tensors": {"a": [[1, 2]], "b": [["café", "�"]], "c": [[0.5, None, None]]},
    }


def test_detections_are_typed() -> None:
    result = read(TWO)
    assert (result.boxes.dtype, result.scores.dtype, result.class_ids.dtype) == (np.float32, np.float32, np.int32)
    assert (result.boxes.shape, result.image_size, len(result)) == ((2, 4), (100, 200), 2)
    assert list(result) == [
        Detection((10, 20, 110, 90), "cat", 17, 0.875),
        Detection((0, 0, 40.25, 30.5), "café cup", 47, 0.5),
    ]


def test_text_is_typed() -> None:
    result = read(TEXT)
    assert (result.quads.dtype, result.quads.shape, result.scores.dtype) == (np.float32, (2, 4, 2), np.float32)
    assert (result.texts, result.text) == (("EXIT", "出口 →"), "EXIT\n出口 →")
    assert result.scores.tolist() == [0.96875, 0.5]
    assert (result.image_size, result.left_out, len(result), result.boxes) == ((100, 200), 3, 2, None)
    assert next((one.label, one.score, one.quad) for one in result) == ("EXIT", 0.96875, SIGN)
    assert [one.values["turn_degrees"] for one in result] == [180, 180]


def test_regions_hold_what_each_stage_said() -> None:
    result = read(OBJECTS)
    assert type(result) is Regions
    assert result.boxes.tolist() == [[10, 20, 110, 90], [0, 0, 40.25, 30.5]]
    cup, table = result
    assert cup.quad == ((10, 20), (110, 20), (110, 90), (10, 90))
    assert (cup.label, cup.score, cup.class_id, str(cup)) == ("espresso", 0.625, 5, "espresso 0.62")
    assert cup.values["labels"] == ["espresso", "other"]
    assert (table.label, table.values["detect_labels"], table.values["detect_scores"]) == ("café", "table", 0.875)
    plain = json.loads(json.dumps(result.to_dict()))
    assert set(plain) == {*NAMES, "boxes", "image_size", "left_out", "model", "request_id", "latency_ms"}
    assert plain["labels"] == [["espresso", "other"], ["café", "other"]]
    assert plain["boxes"] == [[10, 20, 110, 90], [0, 0, 40.25, 30.5]]


def test_text_in_boxes_is_read_too() -> None:
    """As of plates: a detector's boxes, and the text in each."""
    result = read(but(TEXT, quads=None, boxes=np.array([[(1, 2, 3, 4), (5, 6, 7, 8)]], np.float32)))
    assert result.quads.tolist()[0] == [[1, 2], [3, 2], [3, 4], [1, 4]]
    assert result.to_dict()["boxes"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert "quads" not in result.to_dict()


def test_one_class_for_each_region_and_what_a_network_says_as_it_is() -> None:
    """The last stage's own outputs, whatever their shape; and quads alone."""
    assert [(region.label, region.score) for region in read(ONE_CLASS)] == [("espresso", 0.625), ("café", 0.625)]
    result = read(but(OBJECTS, **dict.fromkeys(NAMES[:3]), heat=np.array([[[1.5, np.nan], [2, 3]]], np.float32)))
    assert [(region.label, region.score, region.class_id, str(region)) for region in result] == [("", None, 0, "")] * 2
    assert result.to_dict()["heat"] == [[1.5, None], [2, 3]]
    result = read({name: TEXT[name] for name in ("quads", "scores", "image_size")})
    assert (len(result), result.left_out, type(result)) == (2, 0, Regions)


def test_similarity_is_the_cosine() -> None:
    def embedding(*values: float) -> Embedding:
        return read({"embedding": np.array([values], np.float32)})

    one = embedding(3, 4)
    for other, cosine in (((30, 40), 1), ((-3, -4), -1), ((4, -3), 0), ((4, 3), 24 / 25), ((0, 0), 0)):
        assert one.similarity(embedding(*other)) == pytest.approx(cosine)
    with pytest.raises(ValueError, match="one embedding has 2 values, the other 3"):
        one.similarity(embedding(1, 2, 3))
    assert one.to_dict() == {"model": "m", "request_id": "id", "latency_ms": 1.5, "embedding": [3, 4]}


def test_masks_of_classes_and_of_probabilities() -> None:
    classes, probabilities = read(MASKS), read(but(MASKS, masks=texts(png(), png())))
    np.testing.assert_array_equal(classes.classes(), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="expected output: probabilities"):
        classes.probabilities()
    assert probabilities.probabilities().shape == (2, 2, 3)
    with pytest.raises(ValueError, match="expected output: classes"):
        probabilities.classes()
    plain = probabilities.to_dict()
    assert (plain["class_ids"], plain["labels"], plain["image_size"]) == ([0, 1], ["sky", "ground"], [2, 3])
    assert len(plain["masks"]) == 2


def test_a_text_and_a_rotation_are_plain_values() -> None:
    score = np.array([[0.75]], np.float32)
    each = texts(np.float32([1, 0.5]).tobytes())
    said = read({"texts": texts("né".encode()), "scores": score, "character_scores": each}, "text")
    assert (said.text, said.score, said.character_scores.tolist()) == ("né", 0.75, [1, 0.5])
    assert said.records(is_flat=True) == [{"text": "né", "score": 0.75, "character_scores": "[1.0, 0.5]"}]
    assert (said.caption(), read({"texts": texts(b""), "scores": score}, "text").summary()) == (["né 0.75"], [])
    turned = read({"degrees": np.array([[90]], np.int32), "scores": score}, "rotation")
    assert (turned.degrees, turned.score, turned.caption()) == (90, 0.75, ["90° 0.75"])
    with pytest.raises(UnexpectedResponse, match="character_scores of no float32"):
        read({"texts": texts(b"n"), "scores": score, "character_scores": texts(b"\0\0\0")}, "text")


# ---- answers that break the contract --------------------------------------------------------------------------------

FAR = np.array(TEXT["quads"])
FAR[0, 1, 2] = (90, 301)
ANY = "scores of [1, k], class_ids of [1, k], perhaps labels of"
STRINGS, NEGATIVE = np.array([[1, 2]], np.int32), np.array([[0, -1]], np.int32)


@pytest.mark.parametrize(
    ("kind", "tensors", "words"),
    [
        ("classification", {}, "nothing"),
        ("classification", {"boxes": np.zeros((1, 7, 4), np.float32)}, ANY),
        ("classification", {name: array[0] for name, array in ESPRESSO.items()}, ANY),
        ("classification", {name: array[:, :0] for name, array in ESPRESSO.items()}, ANY),
        ("classification", but(ESPRESSO, scores=ESPRESSO["scores"][:, :1]), ANY),
        ("detection", ESPRESSO, "boxes of [1, n, 4]"),
        ("detection", but(TWO, boxes=np.zeros((1, 3, 4), np.float32)), "'boxes': [1, 3, 4]"),
        ("detection", but(TWO, scores=np.zeros((1, 2, 1), np.float32)), "'scores': [1, 2, 1]"),
        ("detection", but(TWO, image_size=np.array([100, 200], np.int32)), "'image_size': [2]"),
        ("detection", but(TWO, boxes=np.zeros((1, 2, 4), np.int32)), "boxes of int32"),
        ("detection", but(TWO, boxes=np.full((1, 2, 4), np.nan, np.float32)), "expected finite floats"),
        ("detection", but(TWO, image_size=np.array([[0, 200]], np.int32)), "a picture of [0, 200]"),
        ("detection", but(TWO, image_size=np.array([[100, 200]], np.float32)), "whole numbers"),
        ("detection", but(TWO, scores=np.array([[0.2, 0.9]], np.float32)), "the best first"),
        ("detection", but(TWO, scores=np.array([[0.2, np.nan]], np.float32)), "scores of float32: [0.2 nan], expected"),
        ("detection", but(TWO, scores=np.array([[2, 1]], np.int32)), "scores of int32"),
        ("detection", but(TWO, class_ids=NEGATIVE), "class_ids of int32: [ 0 -1], expected whole numbers from 0 on"),
        ("detection", but(TWO, labels=STRINGS), "labels of int32: [1 2], expected strings"),
        ("detection", but(TWO, labels=texts(b"cat", b"\xff")), "labels that are no UTF-8"),
        ("detection", but(TWO, heat=np.zeros((), np.float32)), "'heat': []"),
        ("detection", but(TWO, heat=np.zeros(0, np.float32)), "'heat': [0]"),
        ("embedding", {"embedding": np.zeros((1, 0), np.float32)}, "values"),
        ("embedding", {"embedding": np.zeros(4, np.float32)}, "values"),
        ("embedding", {"embedding": np.zeros((1, 4), np.int32)}, "finite floats"),
        ("embedding", {"embedding": np.full((1, 4), np.inf, np.float32)}, "finite floats"),
        ("reading", ESPRESSO, "quads of [1, n, 4, 2]"),
        ("reading", but(TEXT, quads=None), "either boxes or quads"),
        ("reading", but(TEXT, image_size=None), "image_size of [1, 2]"),
        ("reading", but(TEXT, quads=np.zeros((), np.float32)), "'quads': []"),
        ("reading", but(TEXT, find_scores=np.zeros((1, 5), np.float32)), "'find_scores': [1, 5]"),
        ("reading", but(TEXT, left_out=np.zeros(1, np.int32)), "'left_out': [1]"),
        ("reading", but(TEXT, left_out=np.array([[-1]], np.int32)), "left_out of int32: [-1]"),
        ("reading", but(TEXT, left_out=np.array([[0.5]], np.float32)), "left_out of float32: [0.5]"),
        ("reading", but(TEXT, left_out=texts(b"0")), "expected whole numbers from 0 on"),
        ("reading", but(TEXT, quads=np.zeros((1, 2, 4, 2), np.int32)), "quads of int32"),
        ("reading", but(TEXT, quads=FAR), "a corner at [90.0, 301.0] for a picture of 200x100 pixels"),
        (
            "reading",
            but(TEXT, quads=np.full((1, 2, 4, 2), 1e30, np.float32)),
            "no corner further from it than its long",
        ),
        ("reading", but(TEXT, turn_scores=np.array([[np.inf, 0]], np.float32)), "turn_scores of float32: [inf  0.]"),
        ("reading", but(TEXT, texts=texts(b"ok", b"\xff")), "texts that are no UTF-8"),
        ("reading", but(TEXT, find_class_ids=NEGATIVE), "find_class_ids of int32: [ 0 -1], expected whole numbers"),
        ("segmentation", but(MASKS, labels=texts(b"sky")), "for any kind use predict"),
        ("segmentation", but(MASKS, masks=np.array(png(), object)), "for any kind use predict"),
        ("segmentation", but(MASKS, masks=texts()), "for any kind use predict"),
        ("segmentation", but(MASKS, masks=texts(png(), png(), png())), "3 masks, expected 1 or 2"),
        ("segmentation", but(MASKS, masks=texts(png((3, 2)))), "not all PNG files, 8-bit gray, of the picture's 3x2"),
        ("segmentation", but(MASKS, masks=texts(png(mode="RGB"))), "not all PNG files"),
        ("segmentation", but(MASKS, masks=texts(b"")), "not all PNG files"),
        ("segmentation", but(MASKS, masks=np.zeros((1, 1), np.float32)), "expected strings"),
        ("segmentation", but(MASKS, image_size=np.array([[2, 2**40]], np.int64)), "sides of 1 to 2147483647"),
    ],
)
def test_what_no_pipeline_of_a_kind_may_answer(kind: str, tensors: Tensors, words: str) -> None:
    with pytest.raises(UnexpectedResponse) as error:
        read(tensors, kind)
    assert words in str(error.value)
    assert "model 'm' answered" in str(error.value)


def test_a_turned_region_may_reach_out_of_the_picture() -> None:
    near = np.array(TEXT["quads"])
    near[0, 0] = (-200, 300)
    assert read(but(TEXT, quads=near)).quads[0, 0].tolist() == [-200, 300]


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
ARRAYS = st.builds(np.zeros, SHAPES, st.sampled_from([np.float32, np.int32, np.uint8])) | st.builds(
    np.full, SHAPES, st.just(b"a"), st.just(object)
)


@pytest.mark.parametrize("call", ["read", "predict", "detect"])
@given(st.data())
def test_any_tensors_are_a_result_or_refused(call: str, data: st.DataObject) -> None:
    tensors = TWO if call == "detect" else data.draw(st.sampled_from([TEXT, OBJECTS]))
    other = data.draw(st.dictionaries(st.sampled_from([*tensors, "heat"]), ARRAYS))
    try:
        result = asked({**tensors, **other}, call)
    except OnestreamError:
        return
    assert isinstance(result, Detections if call == "detect" else Regions)
    assert len(list(result)) == len(result)
    if isinstance(result, Detections):
        assert len(result.boxes) == len(result.scores) == len(result.class_ids) == len(result.labels)
    else:
        assert {len(array) for array in (result.quads, *result.tensors.values())} == {len(result)}
    json.dumps(result.to_dict(), allow_nan=False)


# ---- what can be done with results -----------------------------------------------------------------------------------


def test_supervision_gets_the_same_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("supervision")
    result = read(TWO)
    theirs = result.to_supervision()
    assert theirs.xyxy.tolist() == result.boxes.tolist()
    assert (theirs.confidence.tolist(), theirs.class_id.tolist()) == ([0.875, 0.5], [17, 47])
    assert theirs.data["class_name"].tolist() == ["cat", "café cup"]
    assert theirs[theirs.class_id == 17].xyxy.tolist() == [[10, 20, 110, 90]]
    theirs.xyxy[:] = 0
    assert result.boxes[0].tolist() == [10, 20, 110, 90], "what they change stays theirs"
    assert read(detections()).to_supervision().xyxy.shape == (0, 4)
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[detect\]'"):
        result.to_supervision()


def test_supervisions_names_are_there_too() -> None:
    result = replace(read(TWO), track_ids=np.array([7, -1], np.int32))
    assert result.xyxy is result.boxes
    assert result.confidence is result.scores
    assert result.class_id is result.class_ids
    assert result.tracker_id is result.track_ids
    assert result[result.tracker_id > 0].labels == ("cat",)
    assert read(TWO).tracker_id is None


def test_results_of_several_answers_are_joined_where_they_are_alike() -> None:
    joined = Reading.concat([read(TEXT), read(TEXT)[:1]])
    assert (joined.texts, joined.left_out) == (("EXIT", "出口 →", "EXIT"), 6)
    assert (joined.xyxy, joined.class_id) == (None, None)
    assert joined.confidence is joined.scores
    with pytest.raises(ValueError, match="regions with different tensors"):
        Regions.concat([read(OBJECTS), read(TEXT)])
    for changed in ({"image_size": (5, 5)}, {"track_ids": np.array([1, 2], np.int32)}):
        with pytest.raises(ValueError, match=f"objects with different {next(iter(changed))} cannot be concatenated"):
            Detections.concat([read(TWO), replace(read(TWO), **changed)])
