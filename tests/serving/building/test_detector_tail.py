"""Every family's outputs become candidates: compared with a plain decoding in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError

from onestream.postprocess.detector_family import DetectorFamily
from onestream.serving.building.detector_tail import append_tail, class_count
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.wire.tensor_names import CANDIDATES

HEIGHT, WIDTH = SIZE = (64, 96)
CELLS = 8 * 12 + 4 * 6 + 2 * 3
"""Of strides 8, 16 and 32."""
CELLS_OF_FOUR = CELLS + 1 * 2
K = 20
OPSETS = (11, 13, 17, 18, 21)

Arrays = dict[str, np.ndarray]
Boxes = np.ndarray


def network(
    outputs: Arrays,
    *,
    opset: int = 17,
    before: dict[str, str] | None = None,
    constants: Arrays | None = None,
    rank_only: bool = False,
) -> onnx.ModelProto:
    """A network that gives its inputs as they are, or by an operator in ``before``: any batch."""
    before = before or {}
    nodes, inputs, results = [], [], []
    for name, values in outputs.items():
        dtype = helper.np_dtype_to_tensor_dtype(values.dtype)
        dims = ["batch", *(["any"] * (values.ndim - 1) if rank_only else values.shape[1:])]
        attributes = {"axis": 2} if before.get(name) == "Softmax" else {}
        nodes.append(helper.make_node(before.get(name, "Identity"), [f"{name}_in"], [name], **attributes))
        inputs.append(helper.make_tensor_value_info(f"{name}_in", dtype, dims))
        results.append(helper.make_tensor_value_info(name, dtype, dims))
    initializers = [numpy_helper.from_array(values, name) for name, values in (constants or {}).items()]
    graph = helper.make_graph(nodes, "detector", inputs, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def candidates(
    outputs: Arrays, *, max_candidates: int = K, size: tuple[int, int] = SIZE, anchors: Any = None, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    made = {name: options.pop(name) for name in ("opset", "before", "constants") if name in options}
    model = network(outputs, **made)
    append_tail(model, DetectorFamily(**options), network_hw=size, max_candidates=max_candidates, anchors=anchors)
    onnx.checker.check_model(model, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == list(CANDIDATES)
    assert [output.type for output in session.get_outputs()] == ["tensor(float)", "tensor(float)", "tensor(int32)"]
    found = session.run(None, {f"{name}_in": values for name, values in outputs.items()})
    k, batch = found[1].shape[1], len(next(iter(outputs.values())))
    assert [output.shape for output in session.get_outputs()] == [["batch", k, 4], ["batch", k], ["batch", k]]
    assert [values.shape for values in found] == [(batch, k, 4), (batch, k), (batch, k)]
    return tuple(found)


def check(found: tuple[np.ndarray, ...], boxes: Boxes, scores: np.ndarray, *, k: int = K) -> None:
    """``boxes`` is (batch, anchors, 4) and ``scores`` (batch, anchors, classes), decoded plainly in float64."""
    best = scores.max(axis=2)
    for image in range(len(scores)):
        order = np.argsort(-best[image], kind="stable")[:k]
        assert len(found[1][image]) == len(order)
        # Exponentials and sums in float32, in an order of a library's own.
        np.testing.assert_allclose(found[1][image], best[image][order], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found[0][image], boxes[image][order], rtol=1e-5, atol=1e-3)
        np.testing.assert_array_equal(found[2][image], scores[image].argmax(axis=1)[order])


def draw(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def corners(x: np.ndarray, y: np.ndarray, width: np.ndarray, height: np.ndarray) -> Boxes:
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=-1)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values.astype(np.float64)))


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values.astype(np.float64) - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def cells(strides: tuple[int, ...] = (8, 16, 32)) -> list[tuple[int, int, int]]:
    """Column, row and stride of every cell."""
    return [
        (column, row, stride)
        for stride in strides
        for row in range(-(-HEIGHT // stride))
        for column in range(-(-WIDTH // stride))
    ]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("turned", [True, False], ids=["values first", "anchors first"])
@pytest.mark.parametrize("classes", [1, 3, 80])
@pytest.mark.parametrize("batch", [1, 3])
def test_yolo(opset: int, turned: bool, classes: int, batch: int) -> None:
    rows = draw(batch, CELLS, 4 + classes)
    rows[..., :4] *= 64
    given = np.ascontiguousarray(rows.transpose(0, 2, 1)) if turned else rows
    found = candidates({"output0": given}, family="yolo", opset=opset)
    check(found, corners(*np.moveaxis(rows[..., :4], -1, 0)), rows[..., 4:])


def test_yolo_of_other_strides_has_more_anchors_than_values() -> None:
    rows = draw(2, 500, 4 + 80)
    check(
        candidates({"output0": rows.transpose(0, 2, 1)}, family="yolo"),
        corners(*np.moveaxis(rows[..., :4], -1, 0)),
        rows[..., 4:],
    )


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


ANCHORS = np.concatenate([draw(50, 2, seed=1), draw(50, 2, low=0.1, seed=2)], axis=1)
"""Centre and size, in parts of the sides."""
ENCODED = draw(2, 50, 4, low=-2, high=2)


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


@pytest.mark.parametrize("made_by", ["Sigmoid", "Softmax"])
def test_ssd_that_makes_scores_itself(made_by: str) -> None:
    logits = draw(2, 50, 6, low=-4, high=4, seed=3)
    outputs = {"logits": logits, "encodings": ENCODED}
    found = candidates(outputs, constants={"anchors": ANCHORS}, before={"logits": made_by}, family="ssd")
    check(found, ssd_boxes("yxhw"), {"Sigmoid": sigmoid, "Softmax": softmax}[made_by](logits)[..., 1:])
    with pytest.raises(BadPipeline, match=r"comes from s[a-z]+ already"):
        candidates(
            outputs, constants={"anchors": ANCHORS}, before={"logits": made_by}, family="ssd", activation="sigmoid"
        )


def as_output(anchors: np.ndarray) -> Arrays:
    return {"priors": np.tile(anchors, (2, 1, 1))}


@pytest.mark.parametrize("coding", ["yxhw", "xywh"])
@pytest.mark.parametrize("where", ["constant", "output", "given"])
@pytest.mark.parametrize("normalized", [None, True, False])
def test_ssd_encodings(coding: str, where: str, normalized: bool | None) -> None:
    scores = draw(2, 50, 6, seed=3)
    outputs = {"scores": scores, "encodings": ENCODED} | (as_output(ANCHORS) if where == "output" else {})
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
def test_boxes_in_one_output(normalized: bool | None) -> None:
    rows = draw(2, 40, 6)
    rows[..., 5] = np.random.default_rng(1).integers(0, 9, (2, 40))
    found = candidates({"output0": rows}, family="boxes", normalized=normalized)
    scale = [WIDTH, HEIGHT, WIDTH, HEIGHT] if normalized else 1
    check(found, rows[..., :4] * scale, one_hot(rows[..., 4], rows[..., 5], 9))


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


@pytest.mark.parametrize(("anchors", "k"), [(1, 20), (20, 20), (21, 20), (5000, 3840)])
def test_no_more_candidates_than_anchors(anchors: int, k: int) -> None:
    rows = draw(2, anchors, 5 + 2)
    scores = rows[..., 4:5].astype(np.float64) * rows[..., 5:]
    found = candidates({"output": rows}, family="yolov5", max_candidates=k)
    check(found, corners(*np.moveaxis(rows[..., :4], -1, 0)), scores, k=min(k, anchors))


def test_equal_scores_leave_by_their_anchor() -> None:
    rows = draw(1, CELLS, 6)
    rows[..., 4:] = 0.5
    found = candidates({"output0": rows}, family="yolo")
    check(found, corners(*np.moveaxis(rows[..., :4], -1, 0)), rows[..., 4:])


@pytest.mark.parametrize("size", [(64, 96), (60, 90)], ids=["whole cells", "cut cells"])
def test_cut_cells_count(size: tuple[int, int]) -> None:
    rows = np.abs(draw(1, CELLS, 5 + 2))
    assert candidates({"output": rows}, family="yolox", size=size)[1].shape == (1, K)


FAMILIES: dict[str, tuple[Callable[[], Arrays], dict[str, Any]]] = {
    "yolo": (lambda: {"output0": draw(2, 4 + 80, CELLS)}, {}),
    "yolov5": (lambda: {"output": draw(2, 100, 5 + 80)}, {}),
    "yolox": (lambda: {"output": draw(2, CELLS, 5 + 80)}, {}),
    "ssd": (lambda: {"encodings": draw(2, 50, 4), "scores": draw(2, 50, 81)}, {"activation": "sigmoid"}),
    "nanodet": (lambda: {"output": draw(2, CELLS, 80 + 32)}, {}),
    "detr": (lambda: {"logits": draw(2, 60, 80), "pred_boxes": draw(2, 60, 4)}, {}),
    "boxes": (lambda: {"output0": draw(2, 40, 6)}, {}),
}
SCORES_AT = {
    "yolo": ("output0", np.s_[:, 4:]),
    "yolov5": ("output", np.s_[:, :, 4:]),
    "yolox": ("output", np.s_[:, :, 4:]),
    "ssd": ("scores", np.s_[:, :, 1:]),
    "nanodet": ("output", np.s_[:, :, :80]),
    "detr": ("logits", np.s_[:]),
    "boxes": ("output0", np.s_[:, :, 4:]),
}


def given(family: str) -> tuple[Arrays, dict[str, Any]]:
    make, options = FAMILIES[family]
    if family == "ssd":
        options = options | {"constants": {"anchors": ANCHORS}}
    return make(), options | {"family": family}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_score_that_is_not_finite_leaves_first(family: str, number: float, place: int) -> None:
    """And the others of its image, and of the other image, leave as without it."""
    outputs, options = given(family)
    name, scores = SCORES_AT[family]
    plain = candidates(outputs, **options)
    spoiled = {each: values.copy() for each, values in outputs.items()}
    part = spoiled[name][scores]
    at = (1, place, 7) if family == "yolo" else (1, 7, place)
    part[at] = number
    # Without the spoiled anchor there is one candidate fewer before the last.
    removed = {each: values.copy() for each, values in outputs.items()}
    removed[name][scores][(1, slice(None), 7) if family == "yolo" else (1, 7)] = 0 if family != "detr" else -99
    if family == "detr":
        removed[name][1, 7] = outputs[name][1, 7]
        removed[name][1, 7, place] = -99
    found, expected = candidates(spoiled, **options), candidates(removed, **options)
    for array, other, alone in zip(found, expected, plain, strict=True):
        np.testing.assert_array_equal(array[0], alone[0])
        np.testing.assert_array_equal(array[1][1:], other[1][:-1])
    assert found[1][1, 0] == np.inf
    assert np.isfinite(found[1][1, 1:]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_float16_is_computed_in_float32(family: str) -> None:
    outputs, options = given(family)
    halves = {name: values.astype(np.float16) for name, values in outputs.items()}
    widened = {name: values.astype(np.float32) for name, values in halves.items()}
    for seen, expected in zip(candidates(halves, **options), candidates(widened, **options), strict=True):
        np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_how_many_classes_there_are(family: str) -> None:
    outputs, options = given(family)
    model = network(outputs)
    options = {name: value for name, value in options.items() if name != "constants"}
    count = class_count(model, DetectorFamily(**options), network_hw=SIZE)
    assert count == (None if family == "boxes" else 80)
    assert model == network(outputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_gives_candidates_stays_as_it_is(family: str) -> None:
    outputs, options = given(family)
    model = network(outputs, constants=options.pop("constants", None))
    append_tail(model, DetectorFamily(**options), network_hw=SIZE, max_candidates=K)
    before = model.SerializeToString()
    append_tail(model, DetectorFamily(**options), network_hw=SIZE, max_candidates=K)
    assert model.SerializeToString() == before
    assert all(node.name.startswith("onestream/") for node in model.graph.node[len(outputs) :])


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros((1, *shape), dtype)


UNFIT: dict[str, tuple[str, Arrays, str]] = {
    "classes": ("yolo", {"probabilities": zeros(1000)}, r"'probabilities', float32 \[batch, 1000\]"),
    "no class": ("yolo", {"output0": zeros(4, CELLS)}, r"\[batch, 4, 126\]"),
    "two outputs": ("yolo", {"a": zeros(84, 126), "b": zeros(84, 126)}, "'a', .*'b', "),
    "of integers": ("yolo", {"output0": zeros(84, CELLS, dtype=np.int32)}, "int32"),
    "masks too": ("yolov5", {"output0": zeros(99, 117), "output1": zeros(32, 160, 160)}, r"\[batch, 32, 160, 160\]"),
    "only objectness": ("yolov5", {"output": zeros(99, 5)}, r"\[batch, 99, 5\]"),
    "another grid": ("yolox", {"output": zeros(100, 85)}, r"64 x 96 has 126 \(strides 8, 16, 32\) or 128 .*not 100"),
    "other numbers": ("ssd", {"boxes": zeros(50, 4), "scores": zeros(49, 91)}, r"\[batch, 49, 91\]"),
    "no boxes": ("ssd", {"boxes": zeros(50, 5), "scores": zeros(50, 91)}, r"\[batch, 50, 5\]"),
    "four classes": ("detr", {"a": zeros(50, 4), "b": zeros(50, 4)}, "Both have 4 values"),
    "other bins": ("nanodet", {"cls": zeros(126, 80), "dis": zeros(126, 44)}, r"\[batch, 126, 44\]"),
    "no bins": ("nanodet", {"output": zeros(126, 32)}, r"\[batch, 126, 32\]"),
    "a stride missing": ("nanodet", {"cls": zeros(96, 80), "dis": zeros(96, 32)}, "not 96"),
    "one output": ("boxes", {"output0": zeros(300, 38)}, r"\[batch, 300, 38\]"),
    "unnamed": ("boxes", {"a": zeros(9, 4), "b": zeros(9)}, "read from the names"),
    "strings of scores": (
        "boxes",
        {"num_dets": zeros(1), "boxes": zeros(9, 4), "scores": zeros(9), "classes": zeros(8)},
        r"\[batch, 8\]",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused(case: str) -> None:
    family, outputs, seen = UNFIT[case]
    options = {"activation": "sigmoid"} if family == "ssd" else {}
    for act in (class_count, lambda *args, **kwargs: append_tail(*args, max_candidates=K, **kwargs)):
        with pytest.raises(BadNetwork, match=f"the family {family} takes .*; got .*{seen}"):
            act(network(outputs), DetectorFamily(family=family, **options), network_hw=SIZE)


@pytest.mark.parametrize(
    ("anchors", "seen"),
    [
        (None, "no third output and no constant 'anchors'"),
        (ANCHORS[:49], r"must be \[50, 4\] finite numbers, got \[49, 4\] float32"),
        (np.full((50, 4), np.nan, np.float32), "finite"),
        (np.zeros((50, 4), np.int64), "int64"),
    ],
)
def test_anchors_that_do_not_fit_are_refused(anchors: np.ndarray | None, seen: str) -> None:
    outputs, options = given("ssd")
    with pytest.raises(BadNetwork, match=seen):
        candidates(outputs, **options | {"constants": {}}, anchors=anchors)


def test_ssd_must_say_what_makes_its_scores() -> None:
    outputs, options = given("ssd")
    with pytest.raises(BadPipeline, match=r"postprocess.activation: .*'scores' comes from no sigmoid or softmax"):
        candidates(outputs, **options | {"activation": "auto"})


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"family": "yolo", "background": "last"}, "background is of ssd; the family is yolo"),
        ({"family": "ssd", "reg_max": 10}, "reg_max is of nanodet"),
        ({"family": "yolo", "normalized": True}, "normalized is of ssd and boxes"),
        ({"family": "retinanet"}, "'yolo', 'yolov5'"),
        ({"family": "ssd", "variances": (0, 1)}, "greater than 0"),
    ],
)
def test_options_of_another_family_are_refused(options: dict[str, Any], seen: str) -> None:
    with pytest.raises(ValidationError, match=seen):
        DetectorFamily(**options)


def test_old_opsets_and_taken_names_are_refused() -> None:
    outputs, options = given("yolo")
    with pytest.raises(BadNetwork, match="opset 11 or newer; the file has 10"):
        candidates(outputs, **options, opset=10)
    model = network(outputs)
    model.graph.node.append(helper.make_node("Identity", ["output0"], ["candidate_boxes"]))
    with pytest.raises(BadNetwork, match="'candidate_boxes'"):
        append_tail(model, DetectorFamily(**options), network_hw=SIZE, max_candidates=K)


def test_sizes_that_onnx_cannot_tell_are_those_of_a_run() -> None:
    """As of an export with dynamic axes."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["values", "shape"], ["cut"]),
        helper.make_node("NonZero", ["ones"], ["places"]),
        helper.make_node("Gather", ["cut", "places"], ["gathered"], axis=1),
        helper.make_node("Reshape", ["gathered", "shape"], ["output0"]),
    ]
    constants = {"shape": np.array([0, 6, -1], np.int64), "ones": np.ones(6, np.float32)}
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", 12, 16, 3])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["batch", "values", "anchors"])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = DetectorFamily(family="yolo")
    assert class_count(model, options, network_hw=SIZE) == 2
    append_tail(model, options, network_hw=SIZE, max_candidates=K)
    assert [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim[1:]] == [K, 4]


def test_sizes_that_nothing_tells_are_refused() -> None:
    outputs, options = given("yolo")
    with pytest.raises(BadNetwork, match=r"'output0', float32 \[batch, any, any\]"):
        class_count(network(outputs, rank_only=True), DetectorFamily(**options), network_hw=SIZE)
