"""What the client makes of a cascade's outputs: text that was read, and regions that were looked at."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from both_clients import Ask, asked
from client_fakes import classification, detections, reading, sorted_objects
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from onestream.client import Detections, OnestreamError, Reading, Regions, Tensors, UnexpectedResponse
from onestream.wire.box_style import color_of

SIGN = ((20, 10), (120, 30), (115, 50), (15, 30))
TEXT = reading(("EXIT", 0.96875, SIGN), ("出口 →", 0.5, ((10, 60), (60, 60), (60, 80), (10, 80))), left_out=3)
OBJECTS = sorted_objects(("cup", "espresso", (10, 20, 110, 90)), ("table", "café", (0, 0, 40.25, 30.5)))
NAMES = ("scores", "class_ids", "labels", "detect_scores", "detect_class_ids", "detect_labels")


def read(tensors: Tensors = TEXT) -> Reading:
    return asked(tensors, "read")


def regions(tensors: Tensors = OBJECTS) -> Regions:
    return asked(tensors, "predict")


# ---- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["read", "predict"])
def test_text_is_typed(ask: Ask, call: str) -> None:
    result = ask(TEXT, call)
    assert isinstance(result, Reading)
    assert (result.quads.dtype, result.quads.shape, result.scores.dtype) == (np.float32, (2, 4, 2), np.float32)
    assert result.texts == ("EXIT", "出口 →")
    assert result.text == "EXIT\n出口 →"
    assert result.scores.tolist() == [0.96875, 0.5]
    assert (result.image_size, result.left_out, len(result), result.boxes) == ((100, 200), 3, 2, None)
    assert next((one.label, one.score, one.quad) for one in result) == ("EXIT", 0.96875, SIGN)
    assert [one.values["turn_degrees"] for one in result] == [180, 180]
    assert result.model == ("read" if call == "read" else "any")
    assert result.request_id
    assert result.latency_ms >= 0


def test_regions_of_several_answers_are_joined() -> None:
    joined = Reading.concat([read(), read()[:1]])
    assert (joined.texts, joined.left_out) == (("EXIT", "出口 →", "EXIT"), 6)
    assert (joined.xyxy, joined.class_id) == (None, None)
    assert joined.confidence is joined.scores
    with pytest.raises(ValueError, match="regions with different tensors"):
        Regions.concat([regions(), read()])


def test_regions_hold_what_each_stage_said(ask: Ask) -> None:
    result = ask(OBJECTS, "predict")
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
    tensors = {name: array for name, array in TEXT.items() if name != "quads"}
    result = read({**tensors, "boxes": np.array([[(1, 2, 3, 4), (5, 6, 7, 8)]], np.float32)})
    assert result.quads.tolist()[0] == [[1, 2], [3, 2], [3, 4], [1, 4]]
    assert result.to_dict()["boxes"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert "quads" not in result.to_dict()


def test_one_class_for_each_region_and_what_a_network_says_as_it_is() -> None:
    """Without a dimension of classes, and the last stage's own outputs, whatever their shape."""
    one = {
        name: array[..., 0] if name in ("scores", "class_ids", "labels") else array for name, array in OBJECTS.items()
    }
    assert [(region.label, region.score) for region in regions(one)] == [("espresso", 0.625), ("café", 0.625)]
    other = {name: array for name, array in OBJECTS.items() if name.startswith("detect_") or name not in NAMES}
    result = regions({**other, "heat": np.array([[[1.5, np.nan], [2, 3]]], np.float32)})
    assert [(region.label, region.score, region.class_id, str(region)) for region in result] == [("", None, 0, "")] * 2
    assert result.to_dict()["heat"] == [[1.5, None], [2, 3]]


def test_quads_alone_are_regions_of_which_nothing_is_left_out() -> None:
    result = regions({name: TEXT[name] for name in ("quads", "scores", "image_size")})
    assert (len(result), result.left_out, type(result)) == (2, 0, Regions)


def test_calls_for_other_kinds_refuse_a_cascade() -> None:
    for call in ("classify", "detect", "embed", "segment"):
        for tensors in (TEXT, OBJECTS):
            with pytest.raises(UnexpectedResponse, match="for any kind use predict"):
                asked(tensors, call)
    one = {
        name: array[..., 0] if name in ("scores", "class_ids", "labels") else array for name, array in OBJECTS.items()
    }
    with pytest.raises(UnexpectedResponse, match="for any kind use predict"):
        asked(one, "detect")


# ---- answers that break the contract --------------------------------------------------------------------------------


def changed(**outputs: Any) -> Tensors:
    return {**TEXT, **outputs}


def without(name: str) -> Tensors:
    return {other: array for other, array in TEXT.items() if other != name}


FAR = np.array(TEXT["quads"])
FAR[0, 1, 2] = (90, 301)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "nothing"),
        (classification(("espresso", 967, 0.95)), "quads of [1, n, 4, 2]"),
        (without("quads"), "either boxes or quads"),
        (without("image_size"), "image_size of [1, 2]"),
        (changed(quads=np.zeros((1, 3, 4, 2), np.float32)), "'quads': [1, 3, 4, 2]"),
        (changed(quads=np.zeros((), np.float32)), "'quads': []"),
        (changed(scores=np.zeros((1, 3), np.float32)), "'scores': [1, 3]"),
        (changed(find_scores=np.zeros((1, 5), np.float32)), "'find_scores': [1, 5]"),
        (changed(image_size=np.array([100, 200], np.int32)), "'image_size': [2]"),
        (changed(left_out=np.zeros(1, np.int32)), "'left_out': [1]"),
        (changed(left_out=np.array([[-1]], np.int32)), "left_out of int32: [-1]"),
        (changed(left_out=np.array([[0.5]], np.float32)), "left_out of float32: [0.5]"),
        (changed(left_out=np.array([[b"0"]], object)), "expected whole numbers from 0 on"),
        (changed(quads=np.zeros((1, 2, 4, 2), np.int32)), "quads of int32"),
        (changed(quads=np.full((1, 2, 4, 2), np.nan, np.float32)), "expected finite floats"),
        (changed(quads=FAR), "a corner at [90.0, 301.0] for a picture of 200x100 pixels"),
        (changed(quads=np.full((1, 2, 4, 2), 1e30, np.float32)), "no corner further from it than its longer side"),
        (changed(image_size=np.array([[0, 200]], np.int32)), "a picture of [0, 200]"),
        (changed(scores=np.array([[0.5, np.nan]], np.float32)), "scores of float32: [0.5 nan], expected finite"),
        (changed(scores=np.array([[1, 0]], np.int32)), "scores of int32"),
        (
            changed(turn_scores=np.array([[np.inf, 0]], np.float32)),
            "turn_scores of float32: [inf  0.], expected finite floats",
        ),
        (changed(texts=np.array([[1, 2]], np.int32)), "texts of int32: [1 2], expected strings"),
        (changed(texts=np.array([[b"ok", b"\xff"]], object)), "texts that are no UTF-8"),
        (
            changed(find_class_ids=np.array([[0, -1]], np.int32)),
            "find_class_ids of int32: [ 0 -1], expected whole numbers",
        ),
    ],
)
def test_what_no_reader_may_answer(ask: Ask, tensors: Tensors, words: str) -> None:
    with pytest.raises(UnexpectedResponse) as error:
        ask(tensors, "read")
    assert words in str(error.value)
    assert "'read'" in str(error.value)
    assert error.value.request_id


def test_a_turned_region_may_reach_out_of_the_picture() -> None:
    near = np.array(TEXT["quads"])
    near[0, 0] = (-200, 300)
    assert read(changed(quads=near)).quads[0, 0].tolist() == [-200, 300]


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
ARRAYS = st.builds(np.zeros, SHAPES, st.sampled_from([np.float32, np.int32, np.uint8])) | st.builds(
    np.full, SHAPES, st.just(b"a"), st.just(object)
)


FOUND = detections(("cat", 17, 0.875, (10, 20, 110, 90)), ("cup", 47, 0.5, (0, 0, 40.25, 30.5)))


@pytest.mark.parametrize("call", ["read", "predict", "detect"])
@given(st.data())
def test_any_tensors_are_a_result_or_refused(call: str, data: st.DataObject) -> None:
    tensors = FOUND if call == "detect" else data.draw(st.sampled_from([TEXT, OBJECTS]))
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


# ---- drawing --------------------------------------------------------------------------------------------------------

GRAY = (90, 90, 90)
SIZE = (200, 100)


def drawn(result: Regions, size: tuple[int, int] = SIZE) -> np.ndarray[Any, Any]:
    return np.asarray(result.draw(Image.new("RGB", size, GRAY)))


def test_a_quad_is_drawn_along_its_edges() -> None:
    size = (600, 400)
    quad = ((100, 200), (400, 250), (390, 320), (90, 270))
    seen = drawn(read(reading(("word", 0.9, quad), size_hw=size[::-1])), size)
    for (x0, y0), (x1, y1) in zip(quad, (*quad[1:], quad[0]), strict=True):
        middle = seen[round((y0 + y1) / 2), round((x0 + x1) / 2)]
        assert tuple(middle) != GRAY
    assert tuple(seen[262, 245]) == GRAY, "the text itself stays visible"
    assert tuple(seen[395, 595]) == GRAY


@pytest.mark.parametrize("text", ["EXIT", "出口", "\x1b[31m\n", "😀 عربي", "a" * 5000, "", "\u202eabc", "\x00"])
@pytest.mark.parametrize("has_free_type", [True, False])
def test_text_that_a_font_lacks_is_drawn_as_it_can(
    monkeypatch: pytest.MonkeyPatch, text: str, has_free_type: bool
) -> None:
    if not has_free_type:
        bitmap = ImageFont.load_default_imagefont()
        monkeypatch.setattr("onestream.client.kinds.drawing._font", lambda _size: bitmap)
    labelled, outlined = (drawn(read(reading((one, 0.9, SIGN), size_hw=SIZE[::-1]))) for one in (text, ""))
    changed = (labelled != outlined).any(axis=2)
    assert (changed.sum() > 100) == bool(text), "a text has a place, where there is one"


def test_a_text_covers_no_other_line_where_it_has_room() -> None:
    """There is none above or below the middle line, so its text stands to the right."""
    size = (600, 200)
    rows = [(f"line {n}", 0.9, ((20, y), (300, y), (300, y + 20), (20, y + 20))) for n, y in enumerate((60, 81, 102))]
    seen = drawn(read(reading(*rows, size_hw=size[::-1])), size)
    for _, _, ((x0, y0), _, (x1, y1), _) in rows:
        assert (seen[y0 + 6 : y1 - 6, x0 + 6 : x1 - 6] == GRAY).all()
    labelled = (seen[86:97, 305:340] == color_of(0)).all(axis=2)
    assert labelled.mean() > 0.5


def test_regions_are_drawn_as_boxes_with_names_and_in_the_colour_of_their_class() -> None:
    seen = drawn(regions(sorted_objects(("cup", "espresso", (10, 20, 110, 90)))))
    assert (seen[20, 10:110] == color_of(5)).all()
    assert (seen[20:90, 10] == color_of(5)).all()


def test_a_picture_of_another_size_is_refused() -> None:
    for result in (read(), asked(FOUND, "detect")):
        with pytest.raises(ValueError, match="the picture has 100x200 pixels, the answer is for one of 200x100"):
            result.draw(Image.new("RGB", (100, 200)))


CORNER = st.tuples(st.floats(-200, 400, width=32), st.floats(-200, 300, width=32)) | st.sampled_from([(9, 9), (50, 9)])
POINTS = st.tuples(*[CORNER] * 4)


@given(st.lists(st.tuples(st.text(max_size=20), POINTS), max_size=4))
def test_any_quads_are_drawn(found: list[tuple[str, Any]]) -> None:
    lines = [(text.encode(errors="replace").decode(), 0.5, quad) for text, quad in found]
    assert drawn(read(reading(*lines, size_hw=SIZE[::-1]))).shape == (100, 200, 3)
