"""What one request may set of a postprocessing: numbers within the pipeline's bounds."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from onestream.postprocess.kinds import Opening, Options, without_stages
from onestream.postprocess.kinds.classification import Classification
from onestream.postprocess.kinds.detection import Detection
from onestream.postprocess.kinds.embedding import Embedding
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.postprocess.parameters import BadParameter, read_parameters
from onestream.preprocess import Decode, Definition
from onestream.wire.limits import TRITON_PARAMETERS

DETECTION = Detection(family="yolo", max_detections=20)


def read(options: Options, given: dict[str, Any]) -> dict[str, float]:
    return read_parameters(given, {parameter.name: parameter for parameter in options.request_parameters})


@pytest.mark.parametrize(("value", "read_as"), [(0, 0), (1, 1), ("0.25", 0.25), (0.5, 0.5), (" 1e-3", 0.001), ("1", 1)])
def test_numbers_and_texts_that_hold_one_are_taken(value: Any, read_as: float) -> None:
    assert read(DETECTION, {"score_threshold": value}) == {"score_threshold": read_as}


@pytest.mark.parametrize("name", [*sorted(TRITON_PARAMETERS), "triton_enable_empty_final_response"])
def test_tritons_own_are_passed_over(name: str) -> None:
    assert read(Embedding(), {name: "anything"}) == {}


@pytest.mark.parametrize(
    ("options", "given", "reason"),
    [
        (Embedding(), {"top_k": 1}, "bad parameter 'top_k': this pipeline takes no parameters"),
        (Detection(family="detr"), {"iou_threshold": 0.5}, "'iou_threshold': this pipeline takes max_det.*, score_th"),
        (Classification(top_k=3), {"top_k": 4}, "bad parameter top_k=4: expected a whole number from 1 to 3"),
        (Classification(), {"top_k": 0}, "a whole number from 1 to 5"),
        (Classification(), {"top_k": 1.5}, "a whole number from 1 to 5"),
        (Classification(), {"top_k": True}, "top_k=True"),
        (DETECTION, {"max_detections": "21"}, "max_detections='21': expected a whole number from 1 to 20"),
        *((DETECTION, {"score_threshold": bad}, "a number from 0 to 1") for bad in (-0.1, 1.1, "nan", "inf", "", None)),
        (DETECTION, {"score_threshold": "9" * 5000}, "a number from 0 to 1"),
        (DETECTION, {"score_threshold": [0.5]}, "a number from 0 to 1"),
        (DETECTION, {"x" * 5000: 1}, "bad parameter 'xxxx"),
    ],
)
def test_others_are_refused_in_one_short_sentence(options: Options, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadParameter, match=reason) as refused:
        read(options, given)
    assert len(str(refused.value)) < 250
    assert "\n" not in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("has_tail", [False, True])
def test_each_row_of_a_batch_has_its_own_classes(has_tail: bool) -> None:
    logits = np.array([[3, 2, 1], [1, 2, 3], [2, 3, 1]], np.float32)
    options = Classification(top_k=2, activation="none", labels=("a", "b", "c"))
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :2].astype(np.int32)
    tail = {"scores": np.take_along_axis(logits, ids, axis=1), "class_ids": ids}
    postprocess = options.open(Opening(Definition(operations=[Decode()]), labels="abc", has_tail=has_tail))
    found = postprocess(tail if has_tail else {"y": logits}, [], [{}, {"top_k": 1}, {"top_k": 2}])
    assert [one["labels"].tolist() for one in found] == [[[b"a", b"b"]], [[b"c"]], [[b"b", b"a"]]]
    assert [one["scores"].shape for one in found] == [(1, 2), (1, 1), (1, 2)]


def test_each_picture_of_a_batch_has_its_own_objects_and_what_bounds_left_out_is_counted() -> None:
    """Ten boxes in a row, with scores of 0.1 to 1, in two pictures."""
    scores = np.linspace(1, 0.1, 10, dtype=np.float32)
    boxes = np.stack([np.array([10 * place, 0, 10 * place + 9, 9], np.float32) for place in range(10)])
    batch = {
        "candidate_boxes": np.stack([boxes] * 2),
        "candidate_scores": np.stack([scores] * 2),
        "candidate_classes": np.zeros((2, 10), np.int32),
    }
    options = Detection(family="yolo", score_threshold=0.05, max_detections=4, max_candidates=10)
    full, left_out = [], []
    inner = options.open(Opening(Definition(operations=[Decode()]), full=lambda: full.append(1)))
    own = [{"score_threshold": 0.75}, {"max_detections": 1}]
    assert [one["left_out"].tolist() for one in inner(batch, [(100, 100)] * 2, own)] == [[[0]], [[9]]]
    assert len(full) == 1
    found = without_stages(options, inner, left_out.append)(batch, [(100, 100)] * 2)
    assert [one["scores"].shape for one in found] == [(1, 4)] * 2
    assert left_out == [6, 6]
    assert all("left_out" not in one for one in found)


def test_lines_beyond_the_most_are_said() -> None:
    cells = np.zeros((1, 1, 64, 64), np.float32)
    cells[..., 4::12, 4:60] = cells[..., 5::12, 4:60] = cells[..., 6::12, 4:60] = cells[..., 7::12, 4:60] = 0.9
    options, counts = TextLines(max_lines=2), []
    inner = options.open(Opening(Definition(operations=[Decode()])))
    (found,) = without_stages(options, inner, counts.append)({"map": cells}, [(64, 64)])
    assert (found["quads"].shape, found["left_out"].tolist(), counts) == ((1, 2, 4, 2), [[3]], [3])
