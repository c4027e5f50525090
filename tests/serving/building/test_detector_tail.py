"""What a detector's tail promises whatever its family, and what it refuses."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from detector_networks import ANCHORS, CELLS, SIZE, Arrays, K, candidates, check, corners, draw, network
from networks import network_of
from onnx import TensorProto, helper
from pydantic import ValidationError

from onestream.postprocess.detector_family import DetectorFamily
from onestream.postprocess.kinds.keypoints import Keypoints
from onestream.serving.building.named_files import read_array
from onestream.serving.engine.library import IS_RTX, LOG, trt
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.detector_layout import read_layout
from onestream.serving.graph.detector_tail import append_tail


@pytest.mark.parametrize(("anchors", "k"), [(1, 20), (20, 20), (21, 20), (5000, 3840)])
def test_no_more_candidates_than_anchors(anchors: int, k: int) -> None:
    boxes, scores = draw(2, anchors, 4), draw(2, anchors, 2)
    options = {"family": "ssd", "coding": "xyxy", "normalized": False, "activation": "none", "background": "none"}
    found = candidates({"boxes": boxes, "scores": scores}, max_candidates=k, **options)
    check(found, boxes, scores, k=min(k, anchors))


def test_equal_scores_leave_by_their_anchor() -> None:
    rows = draw(1, CELLS, 6)
    rows[..., 4:] = 0.5
    found = candidates({"output0": rows}, family="yolo")
    check(found, corners(*np.moveaxis(rows[..., :4], -1, 0)), rows[..., 4:])


@pytest.mark.parametrize("size", [(64, 96), (60, 90)], ids=["whole cells", "cut cells"])
def test_cut_cells_count(size: tuple[int, int]) -> None:
    rows = np.abs(draw(1, CELLS, 5 + 2))
    assert candidates({"output": rows}, family="yolox", size=size)[1].shape == (1, K)


FAMILIES: dict[str, tuple[Callable[[], Arrays], str, Any]] = {
    "yolo": (lambda: {"output0": draw(2, 4 + 80, CELLS)}, "output0", np.s_[:, 4:]),
    "yolov5": (lambda: {"output": draw(2, 100, 5 + 80)}, "output", np.s_[:, :, 4:]),
    "yolox": (lambda: {"output": draw(2, CELLS, 5 + 80)}, "output", np.s_[:, :, 4:]),
    "ssd": (lambda: {"encodings": draw(2, 50, 4), "scores": draw(2, 50, 81)}, "scores", np.s_[:, :, 1:]),
    "nanodet": (lambda: {"output": draw(2, CELLS, 80 + 32)}, "output", np.s_[:, :, :80]),
    "detr": (lambda: {"logits": draw(2, 60, 80), "pred_boxes": draw(2, 60, 4)}, "logits", np.s_[:]),
    "boxes": (lambda: {"output0": draw(2, 40, 6)}, "output0", np.s_[:, :, 4:]),
}
"""What its network gives, and where in that the scores are."""


def given(family: str) -> tuple[Arrays, dict[str, Any]]:
    options = {"activation": "sigmoid", "constants": {"anchors": ANCHORS}} if family == "ssd" else {}
    return FAMILIES[family][0](), options | {"family": family}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_score_that_is_not_finite_leaves_first(family: str, number: float, place: int) -> None:
    """And the others of its image, and of the other image, leave as without it."""
    outputs, options = given(family)
    _, name, scores = FAMILIES[family]
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
def test_the_number_of_classes_is_read_and_what_gives_candidates_stays_as_it_is(family: str) -> None:
    outputs, options = given(family)
    model = network(outputs, constants=options.pop("constants", None))
    before = model.SerializeToString()
    count = read_layout(model, DetectorFamily(**options), network_hw=SIZE).classes
    assert count == (None if family == "boxes" else 80)
    assert model.SerializeToString() == before
    append_tail(model, DetectorFamily(**options), network_hw=SIZE, max_candidates=K)
    before = model.SerializeToString()
    append_tail(model, DetectorFamily(**options), network_hw=SIZE, max_candidates=K)
    assert model.SerializeToString() == before
    assert all(node.name.startswith("onestream/") for node in model.graph.node[len(outputs) :])


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros((1, *shape), dtype)


NINE = {"num_dets": zeros(1), "boxes": zeros(9, 4), "scores": zeros(9)}


@pytest.mark.parametrize(
    ("family", "outputs", "seen"),
    [
        ("yolo", {"probabilities": zeros(1000)}, r"'probabilities', float32 \[batch, 1000\]"),
        ("yolo", {"output0": zeros(4, CELLS)}, r"\[batch, 4, 126\]"),
        ("yolo", {"output": zeros(3 * CELLS, 85)}, "is usual for the family yolov5"),
        ("yolo", {"output0": zeros(300, 6)}, "is usual for the family boxes"),
        ("yolov5", {"output0": zeros(84, CELLS)}, "is usual for the family yolo$"),
        ("yolo", {"a": zeros(84, 126), "b": zeros(84, 126)}, "'a', .*'b', "),
        ("yolo", {"output0": zeros(84, CELLS, dtype=np.int32)}, "int32"),
        ("yolov5", {"output0": zeros(99, 117), "output1": zeros(32, 160, 160)}, r"\[batch, 32, 160, 160\]"),
        ("yolov5", {"output": zeros(99, 5)}, r"\[batch, 99, 5\]"),
        ("yolox", {"output": zeros(100, 85)}, r"64 x 96 has 126 \(strides 8, 16, 32\) or 128 .*not 100"),
        ("ssd", {"boxes": zeros(50, 4), "scores": zeros(49, 91)}, r"\[batch, 49, 91\]"),
        ("ssd", {"boxes": zeros(50, 5), "scores": zeros(50, 91)}, r"\[batch, 50, 5\]"),
        ("detr", {"a": zeros(50, 4), "b": zeros(50, 4)}, "Both have 4 values"),
        ("nanodet", {"cls": zeros(126, 80), "dis": zeros(126, 44)}, r"\[batch, 126, 44\]"),
        ("nanodet", {"output": zeros(126, 32)}, r"\[batch, 126, 32\]"),
        ("nanodet", {"cls": zeros(96, 80), "dis": zeros(96, 32)}, "not 96"),
        ("boxes", {"output0": zeros(300, 38)}, r"\[batch, 300, 38\]"),
        ("boxes", {"a": zeros(9, 4), "b": zeros(9)}, "read from the names"),
        ("boxes", NINE | {"classes": zeros(8)}, r"\[batch, 8\]"),
    ],
)
def test_what_does_not_fit_is_refused(family: Any, outputs: Arrays, seen: str) -> None:
    options = {"activation": "sigmoid"} if family == "ssd" else {}
    for act in (read_layout, lambda *args, **kwargs: append_tail(*args, max_candidates=K, **kwargs)):
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


def test_anchors_come_from_a_file_of_numpy() -> None:
    file, several = io.BytesIO(), io.BytesIO()
    np.save(file, ANCHORS)
    np.testing.assert_array_equal(read_array(file.getvalue(), "postprocess.anchors"), ANCHORS)
    np.savez(several, ANCHORS)
    for content in (b"", b"1,2,3", file.getvalue()[:-1], several.getvalue(), pickle.dumps(ANCHORS)):
        with pytest.raises(BadPipeline, match=r"postprocess.anchors: .*\.npy"):
            read_array(content, "postprocess.anchors")


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"family": "yolo", "background": "last"}, "background is of ssd; the family is yolo"),
        ({"family": "ssd", "reg_max": 10}, "reg_max is of nanodet"),
        ({"family": "yolo", "normalized": True}, "normalized is of ssd and boxes"),
        ({"family": "retinanet"}, "'yolo', 'yolov5'"),
        ({"family": "ssd", "variances": (0, 1)}, "greater than 0"),
        ({"family": "ssd", "variances": (float("inf"), 1)}, "finite number"),
    ],
)
def test_options_of_another_family_are_refused(options: dict[str, Any], seen: str) -> None:
    with pytest.raises(ValidationError, match=seen):
        DetectorFamily(**options)


def test_what_cannot_be_read_or_named_is_refused() -> None:
    outputs, options = given("yolo")
    with pytest.raises(BadNetwork, match="opset 11 or newer; the file has 10"):
        candidates(outputs, **options, opset=10)
    with pytest.raises(BadNetwork, match=r"'output0', float32 \[batch, any, any\]"):
        read_layout(network(outputs, rank_only=True), DetectorFamily(**options), network_hw=SIZE)
    taken = network(outputs)
    taken.graph.node.append(helper.make_node("Identity", ["output0"], ["candidate_boxes"]))
    for model, said in (
        (taken, "'candidate_boxes'"),
        (network({"prototypes": zeros(84, CELLS)}), "'prototypes' has the name of a candidate"),
    ):
        with pytest.raises(BadNetwork, match=said):
            append_tail(model, DetectorFamily(**options), network_hw=SIZE, max_candidates=K)
    apart = network(NINE | {"num_dets": zeros(1, dtype=np.int32), "classes": zeros(9, dtype=np.int32)})
    with pytest.raises(BadNetwork, match=r"with 3 more values for each box; got .*They are read from one output alone"):
        read_layout(apart, Keypoints(family="boxes", points=("nose",)), network_hw=SIZE)
    outputs, options = given("ssd")
    with pytest.raises(BadPipeline, match=r"postprocess.activation: .*'scores' comes from no sigmoid or softmax"):
        candidates(outputs, **options | {"activation": "auto"})


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
    model = network_of(
        nodes,
        {"pixels": ["batch", 12, 16, 3]},
        {"output0": ["batch", "values", "anchors"]},
        constants,
        dtype=TensorProto.UINT8,
        gives=TensorProto.FLOAT,
        opset=17,
    )
    options = DetectorFamily(family="yolo")
    assert read_layout(model, options, network_hw=SIZE).classes == 2
    append_tail(model, options, network_hw=SIZE, max_candidates=K)
    assert [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim[1:]] == [K, 4]


@pytest.mark.skipif(not IS_RTX, reason="TensorRT itself builds on a GPU only: see test_engine_on_gpu.py")
@pytest.mark.parametrize("family", FAMILIES)
def test_tensorrt_builds_it(family: str) -> None:
    outputs, options = given(family)
    model = network(outputs, constants=options.pop("constants", None), opset=18)
    append_tail(model, DetectorFamily(**options), network_hw=SIZE, max_candidates=K)
    builder = trt.Builder(LOG)
    definition = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(definition, LOG).parse(model.SerializeToString())
    seen = [definition.get_output(place) for place in range(definition.num_outputs)]
    assert [(each.dtype, tuple(each.shape)) for each in seen] == [
        (trt.float32, (-1, K, 4)),
        (trt.float32, (-1, K)),
        (trt.int32, (-1, K)),
    ]
    profile, config = builder.create_optimization_profile(), builder.create_builder_config()
    for name, values in outputs.items():
        profile.set_shape(f"{name}_in", *((batch, *values.shape[1:]) for batch in (1, 4, 4)))
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    assert builder.build_serialized_network(definition, config) is not None
