"""Every family's outputs become candidates: compared with a plain decoding in NumPy, and with transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torchvision_alone
from detector_networks import (
    ANCHORS,
    CELLS,
    ENCODED,
    HEIGHT,
    SIZE,
    WIDTH,
    Boxes,
    K,
    candidates,
    cells,
    check,
    corners,
    draw,
    network,
    sigmoid,
    softmax,
)
from onnx import TensorProto, helper

from onestream.postprocess.detector_family import DetectorFamily
from onestream.serving.errors import BadPipeline
from onestream.serving.graph.detector_tail import append_tail

OPSETS = (11, 13, 18, 20, 23)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("turned", [True, False], ids=["values first", "anchors first"])
@pytest.mark.parametrize(("classes", "batch"), [(1, 3), (80, 1)])
def test_yolo(opset: int, turned: bool, classes: int, batch: int) -> None:
    rows = draw(batch, CELLS, 4 + classes)
    rows[..., :4] *= 64
    given = np.ascontiguousarray(rows.transpose(0, 2, 1)) if turned else rows
    found = candidates({"output0": given}, family="yolo", opset=opset)
    check(found, corners(*np.moveaxis(rows[..., :4], -1, 0)), rows[..., 4:])


def test_yolo_of_other_strides_has_more_anchors_than_values() -> None:
    rows = draw(2, 500, 4 + 80)
    found = candidates({"output0": rows.transpose(0, 2, 1)}, family="yolo")
    check(found, corners(*np.moveaxis(rows[..., :4], -1, 0)), rows[..., 4:])


@pytest.mark.parametrize("classes", [1, 80])
def test_yolov5(classes: int) -> None:
    rows = draw(2, 100, 5 + classes)
    scores = rows[..., 4:5].astype(np.float64) * rows[..., 5:]
    check(candidates({"output": rows}, family="yolov5"), corners(*np.moveaxis(rows[..., :4], -1, 0)), scores)


@pytest.mark.parametrize("strides", [(8, 16, 32), (8, 16, 32, 64)])
def test_yolox(strides: tuple[int, ...]) -> None:
    rows = draw(2, len(cells(strides)), 5 + 7, low=-1)
    rows[..., 4:] = np.abs(rows[..., 4:])
    boxes = np.empty((2, len(cells(strides)), 4))
    for place, (column, row, stride) in enumerate(cells(strides)):
        x, y, width, height = np.moveaxis(rows[:, place, :4].astype(np.float64), -1, 0)
        boxes[:, place] = corners(
            (x + column) * stride, (y + row) * stride, np.exp(width) * stride, np.exp(height) * stride
        )
    check(candidates({"output": rows}, family="yolox"), boxes, rows[..., 4:5].astype(np.float64) * rows[..., 5:])


def ssd_boxes(coding: str, variances: tuple[float, float] = (0.1, 0.2), *, normalized: bool = True) -> Boxes:
    encoded, anchors = ENCODED.astype(np.float64), ANCHORS.astype(np.float64)
    if coding == "yxhw":
        encoded, anchors = encoded[..., [1, 0, 3, 2]], anchors[..., [1, 0, 3, 2]]
    boxes = corners(
        anchors[:, 0] + encoded[..., 0] * variances[0] * anchors[:, 2],
        anchors[:, 1] + encoded[..., 1] * variances[0] * anchors[:, 3],
        anchors[:, 2] * np.exp(encoded[..., 2] * variances[1]),
        anchors[:, 3] * np.exp(encoded[..., 3] * variances[1]),
    )
    return boxes * ([WIDTH, HEIGHT, WIDTH, HEIGHT] if normalized else 1)


FOREGROUND = {"first": np.s_[..., 1:], "last": np.s_[..., :-1], "none": np.s_[..., :]}


@pytest.mark.parametrize("background", FOREGROUND)
@pytest.mark.parametrize("activation", ["sigmoid", "softmax", "none"])
@pytest.mark.parametrize("opset", OPSETS)
def test_ssd_scores(background: str, activation: str, opset: int) -> None:
    logits = draw(2, 50, 6, low=-4, high=4, seed=3)
    scores = {"sigmoid": sigmoid, "softmax": softmax, "none": lambda values: values}[activation](logits)
    found = candidates(
        {"encodings": ENCODED, "logits": logits},
        constants={"anchors": ANCHORS},
        family="ssd",
        background=background,
        activation=activation,
        opset=opset,
    )
    check(found, ssd_boxes("yxhw"), scores[FOREGROUND[background]])


@pytest.mark.parametrize(("made_by", "scores"), [("Sigmoid", sigmoid), ("Softmax", softmax)])
def test_ssd_that_makes_scores_itself(made_by: str, scores: Callable[[np.ndarray], np.ndarray]) -> None:
    logits = draw(2, 50, 6, low=-4, high=4, seed=3)
    outputs = {"logits": logits, "encodings": ENCODED}
    options: dict[str, Any] = {"constants": {"anchors": ANCHORS}, "before": {"logits": made_by}, "family": "ssd"}
    check(candidates(outputs, **options), ssd_boxes("yxhw"), scores(logits)[..., 1:])
    with pytest.raises(BadPipeline, match=r"comes from s[a-z]+ already"):
        candidates(outputs, **options, activation="sigmoid")


@pytest.mark.parametrize("coding", ["yxhw", "xywh"])
@pytest.mark.parametrize("where", ["constant", "output", "given"])
@pytest.mark.parametrize("normalized", [None, True, False])
def test_ssd_encodings(coding: str, where: str, normalized: bool | None) -> None:
    scores = draw(2, 50, 6, seed=3)
    outputs = {"scores": scores, "encodings": ENCODED} | (
        {"priors": np.tile(ANCHORS, (2, 1, 1))} if where == "output" else {}
    )
    found = candidates(
        outputs,
        constants={"anchors": ANCHORS} if where == "constant" else {},
        anchors=ANCHORS if where == "given" else None,
        family="ssd",
        coding=coding,
        activation="none",
        variances=(0.3, 0.7),
        normalized=normalized,
    )
    check(found, ssd_boxes(coding, (0.3, 0.7), normalized=normalized is not False), scores[..., 1:])


@pytest.mark.parametrize("coding", ["yxyx", "xyxy"])
@pytest.mark.parametrize("normalized", [None, False])
def test_ssd_that_decodes_boxes_itself(coding: str, normalized: bool | None) -> None:
    scores, boxes = draw(2, 50, 6, seed=3), draw(2, 50, 4)
    found = candidates(
        {"boxes": boxes, "scores": scores}, family="ssd", coding=coding, activation="none", normalized=normalized
    )
    expected = boxes[..., [1, 0, 3, 2]] if coding == "yxyx" else boxes
    check(found, expected * (1 if normalized is False else [WIDTH, HEIGHT, WIDTH, HEIGHT]), scores[..., 1:])


def nanodet_boxes(bins: np.ndarray, strides: tuple[int, ...], middle: float) -> Boxes:
    distances = (softmax(bins) * np.arange(bins.shape[-1])).sum(axis=-1)
    boxes = np.empty(distances.shape)
    for place, (column, row, stride) in enumerate(cells(strides)):
        left, top, right, bottom = np.moveaxis(distances[:, place] * stride, -1, 0)
        x, y = (column + middle) * stride, (row + middle) * stride
        boxes[:, place] = np.stack([x - left, y - top, x + right, y + bottom], axis=-1)
    return boxes


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    ("strides", "center", "middle"),
    [
        ((8, 16, 32), "auto", 0.5),
        ((8, 16, 32, 64), "auto", 0.0),
        ((8, 16, 32), "corner", 0.0),
        ((8, 16, 32, 64), "middle", 0.5),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_nanodet(opset: int, strides: tuple[int, ...], center: str, middle: float, apart: bool) -> None:
    count = len(cells(strides))
    scores, bins = draw(2, count, 10), draw(2, count, 4, 11, low=-3, high=3)
    flat = bins.reshape(2, count, 44)
    outputs = {"output": np.concatenate([scores, flat], axis=2)}
    if apart:
        levels = np.cumsum([len(cells((stride,))) for stride in strides])[:-1]
        outputs = {f"cls_{i}": part for i, part in enumerate(np.split(scores, levels, axis=1))}
        outputs |= {f"dis_{i}": part for i, part in enumerate(np.split(flat, levels, axis=1))}
    found = candidates(outputs, family="nanodet", reg_max=10, activation="none", cell_center=center, opset=opset)
    check(found, nanodet_boxes(bins, strides, middle), scores)


def test_nanodet_tells_its_sigmoid_by_the_graph() -> None:
    logits, bins = draw(2, CELLS, 10, low=-4, high=4), draw(2, CELLS, 32, low=-3, high=3)
    boxes = nanodet_boxes(bins.reshape(2, CELLS, 4, 8), (8, 16, 32), 0.5)
    outputs = {"output": np.concatenate([logits, bins], axis=2)}
    check(candidates(outputs, family="nanodet"), boxes, sigmoid(logits))

    model = network({"cls": logits, "dis": bins}, before={"cls": "Sigmoid"})
    model.graph.node.append(helper.make_node("Concat", ["cls", "dis"], ["output"], axis=2))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", CELLS, 42]))
    append_tail(model, DetectorFamily(family="nanodet"), network_hw=SIZE, max_candidates=K)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    check(tuple(session.run(None, {"cls_in": logits, "dis_in": bins})), boxes, sigmoid(logits))


def best_pairs(boxes: Boxes, scores: np.ndarray, k: int) -> list[tuple[Boxes, np.ndarray, np.ndarray]]:
    """As transformers' ``RTDetrImageProcessor.post_process_object_detection``."""
    found = []
    for image in range(len(scores)):
        flat = scores[image].ravel()
        order = np.argsort(-flat, kind="stable")[:k]
        queries, classes = np.divmod(order, scores.shape[2])
        found.append((boxes[image][queries], flat[order], classes))
    return found


@pytest.mark.parametrize("classes", [1, 4, 91])
@pytest.mark.parametrize("form", ["apart", "apart, made by sigmoid", "together"])
@pytest.mark.parametrize("k", [K, 500])
def test_detr(classes: int, form: str, k: int) -> None:
    boxes, logits = draw(2, 60, 4), draw(2, 60, classes, low=-5, high=5, seed=6)
    scores = logits if form == "together" else sigmoid(logits)
    outputs = {"dets": boxes, "labels": logits}
    if form == "together":
        outputs = {"output0": np.concatenate([boxes, logits], axis=2)}
    before = {"labels": "Sigmoid"} if form == "apart, made by sigmoid" else {}
    found = candidates(outputs, family="detr", before=before, max_candidates=k)
    pixels = corners(*np.moveaxis(boxes, -1, 0)) * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    for image, expected in enumerate(best_pairs(pixels, scores, min(k, 60))):
        np.testing.assert_allclose(found[0][image], expected[0], rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(found[1][image], expected[1], rtol=1e-5)
        np.testing.assert_array_equal(found[2][image], expected[2])


@pytest.mark.parametrize("in_graph", [True, False])
def test_detr_with_a_class_for_no_object(in_graph: bool) -> None:
    boxes, logits = draw(2, 60, 4), draw(2, 60, 7, low=-5, high=5, seed=6)
    how = {"before": {"logits": "Softmax"}} if in_graph else {"activation": "softmax"}
    found = candidates({"logits": logits, "pred_boxes": boxes}, family="detr", **how)
    check(found, corners(*np.moveaxis(boxes, -1, 0)) * [WIDTH, HEIGHT, WIDTH, HEIGHT], softmax(logits)[..., :-1])


def one_hot(scores: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    return np.where(np.arange(count) == classes[..., None], scores[..., None], -1)


@pytest.mark.parametrize("normalized", [None, True])
@pytest.mark.parametrize("box_format", ["xyxy", "cxcywh"])
def test_boxes_in_one_output(normalized: bool | None, box_format: str) -> None:
    rows = draw(2, 40, 6)
    rows[..., 5] = np.random.default_rng(1).integers(0, 9, (2, 40))
    found = candidates({"output0": rows}, family="boxes", normalized=normalized, box_format=box_format)
    scale = [WIDTH, HEIGHT, WIDTH, HEIGHT] if normalized else 1
    boxes = rows[..., :4] if box_format == "xyxy" else corners(*np.moveaxis(rows[..., :4], -1, 0))
    check(found, boxes * scale, one_hot(rows[..., 4], rows[..., 5], 9))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("integer", [np.int32, np.int64])
def test_boxes_of_efficient_nms(rows: int, integer: type) -> None:
    """Rows beyond the number of boxes are whatever was there before."""
    boxes, scores = draw(3, rows, 4), draw(3, rows)
    classes = np.random.default_rng(1).integers(0, 9, (3, rows)).astype(integer)
    counts = np.array([[0], [rows // 2], [rows]], integer)
    beyond = np.arange(rows) >= counts
    outputs = {"num_dets": counts, "det_boxes": boxes, "det_scores": scores, "det_classes": classes}
    expected = one_hot(np.where(beyond, 0, scores), classes, 9), np.where(beyond[..., None], 0, boxes)
    check(candidates(outputs, family="boxes"), expected[1], expected[0])
    boxes[beyond], scores[beyond] = np.nan, np.nan
    check(candidates(outputs, family="boxes"), expected[1], expected[0])


def test_boxes_of_rt_detr_with_its_own_postprocessing() -> None:
    boxes, scores = draw(3, 40, 4), draw(3, 40)
    labels = np.random.default_rng(1).integers(0, 9, (3, 40))
    found = candidates({"labels": labels, "boxes": boxes, "scores": scores}, family="boxes")
    check(found, boxes, one_hot(scores, labels, 9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "activation"), [("RTDetrImageProcessor", "auto"), ("DetrImageProcessor", "softmax")]
)
def test_detr_as_transformers(processor: str, activation: str) -> None:
    torch = pytest.importorskip("torch")
    torchvision_alone.load()
    transformers = pytest.importorskip("transformers")
    logits, boxes = draw(2, 60, 7, low=-5, high=5, seed=6), draw(2, 60, 4)
    found = candidates({"logits": logits, "pred_boxes": boxes}, family="detr", activation=activation, max_candidates=60)
    results = getattr(transformers, processor)().post_process_object_detection(
        SimpleNamespace(logits=torch.tensor(logits), pred_boxes=torch.tensor(boxes)),
        threshold=0,
        target_sizes=[SIZE] * 2,
    )
    for image, expected in enumerate(results):
        # One of them leaves the queries in their order.
        order = torch.argsort(-expected["scores"], stable=True)
        np.testing.assert_allclose(found[0][image], expected["boxes"][order], rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(found[1][image], expected["scores"][order], rtol=1e-5)
        np.testing.assert_array_equal(found[2][image], expected["labels"][order])
