"""ONNX files of ultralytics and YOLOv5: the pipeline that each becomes, that it builds, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from agreement import assert_refused, printed_pipeline
from detectors import level_detector
from lazily import Lazily
from networks import ending_in, mean_color
from onnx import helper
from typer.testing import CliRunner
from ultralytics_files import NAMES, Family, square_finder

from onestream.cli.main import app
from onestream.postprocess.kinds.classification import Classification
from onestream.postprocess.kinds.detection import Detection
from onestream.preprocess import CannotImport
from onestream.preprocess.interop import from_letterbox, from_torchvision, import_source
from onestream.serving.building.repository import answer_of
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import Pipeline

SIZE = (64, 96)


def saved(folder: Path, model: onnx.ModelProto, name: str = "net.onnx") -> str:
    (folder / name).write_bytes(model.SerializeToString())
    return str(folder / name)


def refused(folder: Path, model: onnx.ModelProto) -> str:
    with pytest.raises(CannotImport) as caught:
        import_source(saved(folder, model))
    return str(caught.value)


def with_metadata(model: onnx.ModelProto, **metadata: Any) -> onnx.ModelProto:
    helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
    return model


def options_of(pipeline: Pipeline) -> Detection:
    assert isinstance(pipeline.postprocess, Detection)
    return pipeline.postprocess


@pytest.mark.parametrize(
    ("family", "half", "overlap", "most"),
    [("yolo", False, 0.7, 300), ("yolov5", True, 0.45, 1000), ("boxes", True, None, 300), ("detr", False, None, 300)],
)
def test_a_detector_becomes_its_family(
    family: Family, half: bool, overlap: float | None, most: int, tmp_path: Path
) -> None:
    """With the defaults of its predictor, and its network suits it."""
    source = saved(tmp_path, square_finder(family, size_hw=SIZE, half=half))
    pipeline = printed_pipeline(tmp_path, source)
    assert all(len(line) <= 120 for line in (tmp_path / "printed.yaml").read_text().splitlines())
    dtype = "float16" if half else "float32"
    assert pipeline.preprocess == from_letterbox(SIZE, scale_fill=family == "detr", dtype=dtype)
    options = options_of(pipeline)
    assert (options.family, options.score_threshold, options.max_detections) == (family, 0.25, most)
    assert options.suppresses == ("none" if overlap is None else "by_class")
    assert overlap is None or options.iou_threshold == overlap
    assert options.labels == tuple(NAMES.values())
    served = served_network.outputs(onnx_graph.prepare(onnx_graph.load(Path(source)), pipeline.preprocess, options))
    assert answer_of(options, pipeline.preprocess, served, "\n".join(NAMES.values()))


@pytest.mark.parametrize(
    ("family", "metadata"),
    [
        ("boxes", {"end2end": True, "args": {}}),  # YOLO26, and YOLOv10 since it says so
        ("boxes", {"end2end": None, "args": {}}),  # YOLOv10 before
        ("boxes", {"args": {"nms": True}}),
        ("detr", {"description": "Ultralytics my model"}),
        ("detr", {"description": "Ultralytics my model", "head": "RTDETRDecoder"}),
        ("yolo", {"args": None, "end2end": None, "channels": None}),  # 8.0
        ("yolov5", {"names": list(NAMES.values())}),  # before 6.2
    ],
)
def test_files_of_other_versions(family: Family, metadata: dict[str, Any], tmp_path: Path) -> None:
    pipeline = printed_pipeline(tmp_path, saved(tmp_path, square_finder(family, size_hw=SIZE, **metadata)))
    assert options_of(pipeline).family == family
    assert options_of(pipeline).labels == tuple(NAMES.values())


RT_DETR = {"args": {}, "description": "Ultralytics rtdetr-l model"}


@pytest.mark.parametrize(
    "metadata", [RT_DETR, {"args": {}}, {"names": {0: "cat", 1: "dog"}, "args": {}, "head": "RTDETRDecoder"}]
)
def test_rows_of_rt_detr_are_centre_and_size_with_score_and_class(metadata: dict[str, Any], tmp_path: Path) -> None:
    """As ultralytics exports it since 8.4.48."""
    pipeline = printed_pipeline(tmp_path, saved(tmp_path, square_finder("boxes", size_hw=SIZE, **metadata)))
    options = options_of(pipeline)
    assert (options.family, options.box_format, options.normalized) == ("boxes", "cxcywh", True)
    assert pipeline.preprocess == from_letterbox(SIZE, scale_fill=True)


@pytest.mark.parametrize("metadata", [RT_DETR, {"args": {}, "description": "mine"}])
def test_two_classes_leave_the_meaning_of_six_columns_open(metadata: dict[str, Any], tmp_path: Path) -> None:
    network = square_finder("boxes", size_hw=SIZE, names={0: "cat", 1: "dog"}, **metadata)
    printed = CliRunner().invoke(app, ["import", saved(tmp_path, network)]).stdout
    assert "add family: detr for the former" in " ".join(printed.replace("#", "").split())
    (tmp_path / "mine.yaml").write_text(printed)
    with pytest.raises(BadPipeline, match=r"postprocess\.detection\.family: Field required"):
        Pipeline.from_file(tmp_path / "mine.yaml")


@pytest.mark.parametrize("open_dims", [(2,), (1, 2)], ids=["simplified", "not simplified"])
def test_a_file_that_takes_any_size_has_the_one_that_it_names(open_dims: tuple[int, ...], tmp_path: Path) -> None:
    network = square_finder(size_hw=SIZE, batch="open")
    for value, dims in ((network.graph.input[0], (2, 3)), (network.graph.output[0], open_dims)):
        for place in dims:
            value.type.tensor_type.shape.dim[place].dim_param = f"{value.name}_{place}"
    source = saved(tmp_path, network)
    pipeline = printed_pipeline(tmp_path, source)
    assert pipeline.preprocess == from_letterbox(SIZE)
    assert options_of(pipeline).family == "yolo"
    assert any("any size" in note for note in import_source(source).notes)
    # A size that only a run would tell.
    network.graph.node[-1].op_type = "Mystery"
    if open_dims == (1, 2):
        assert "export it with simplify=True, or with dynamic=False" in refused(tmp_path, network)
    del network.metadata_props[[entry.key for entry in network.metadata_props].index("imgsz")]
    assert "no fixed size" in refused(tmp_path, network)


def test_a_classifier_is_resized_and_cropped_as_ultralytics_does(tmp_path: Path) -> None:
    """``classify_transforms`` of ultralytics 8.3, which it gives PIL images."""
    transforms = Lazily("torchvision.transforms")
    theirs = transforms.Compose([transforms.Resize(32), transforms.CenterCrop((32, 32)), transforms.ToTensor()])
    names = dict(enumerate("abcdefg"))
    network = with_metadata(ending_in("Softmax", shape=(1, 3, 32, 32)), stride=1, task="classify", names=names)
    source = saved(tmp_path, network)
    pipeline = printed_pipeline(tmp_path, source)
    assert pipeline.preprocess == from_torchvision(theirs)
    assert pipeline.postprocess == Classification(labels=tuple(names.values()))
    assert pipeline.postprocess.suited_to(served_network.outputs(network)).activation == "none"


@pytest.mark.parametrize(
    ("task", "more", "stated", "fields"),
    [
        ("obb", "angle", {}, {"kind": "oriented_boxes"}),
        ("segment", "masks", {}, {"kind": "instance_masks"}),
        ("pose", "points", {"kpt_shape": [3, 3]}, {"kind": "keypoints", "points": ("point 0", "point 1", "point 2")}),
        ("pose", "points", {"kpt_shape": [3, 3], "kpt_names": {0: ["a", "b", "c"]}}, {"points": ("a", "b", "c")}),
    ],
)
def test_turned_boxes_masks_and_points_become_their_kinds_and_build(
    task: str, more: str, stated: dict[str, object], fields: dict[str, object], tmp_path: Path
) -> None:
    level_detector(tmp_path / "boxes.onnx", more=more)
    network = with_metadata(onnx.load(tmp_path / "boxes.onnx"), task=task, names={0: "red"}, stride=8, **stated)
    options = printed_pipeline(tmp_path, saved(tmp_path, network)).postprocess
    expected = {"family": "yolo", **fields}
    assert {name: getattr(options, name) for name in expected} == expected
    if task == "pose":
        with_metadata(network, task="pose", names={0: "red"}, stride=8, kpt_shape=[3])
        assert "kpt_shape is [3]; expected the number of points, and 2 or 3" in refused(tmp_path, network)


@pytest.mark.parametrize("name", ["no", "1", "a: b", "übergroß, 大", "#x", 'it\'s "it"', "~"])
def test_names_stay_as_they_are_through_yaml(name: str, tmp_path: Path) -> None:
    network = square_finder(size_hw=SIZE, names={0: name, 1: "b", 2: "c"})
    assert options_of(printed_pipeline(tmp_path, saved(tmp_path, network))).labels == (name, "b", "c")


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"names": None}, ["carries no metadata of ultralytics", "letterbox:640"]),
        ({"names": "{0: 'a'"}, ["metadata names is \"{0: 'a'\"", "cannot be read"]),
        ({"names": {0: "a", 2: "b", 3: "c"}}, ["names has the numbers 0, 2, 3", "0 to 2"]),
        ({"names": {0: "a", 1: "b\nc", 2: "d"}}, ["'b\\nc'", "no name on one line"]),
        ({"names": {0: "a", 1: " ", 2: "d"}}, ["no name on one line"]),
        ({"names": {0: "a"}}, ["[1, 7, 126]", "its metadata's 1 classes", "[batch, 5, anchors]"]),
        ({"names": 3}, ["names is '3'", "expected the names"]),
        ({"args": "__import__('os')"}, ["metadata args", "cannot be read"]),
        ({"task": "semantic"}, ["export for the task 'semantic', and detection reads the outputs of 'detect'"]),
    ],
)
def test_what_is_missing_is_said(metadata: dict[str, Any], named: list[str], tmp_path: Path) -> None:
    assert_refused(named, import_source, saved(tmp_path, square_finder(size_hw=SIZE, **metadata)))


def test_other_inputs_and_outputs_are_refused(tmp_path: Path) -> None:
    gray = with_metadata(mean_color((1, 1, 32, 32)), stride=32, names=["a"])
    assert "[1, 1, 32, 32]; expected images of 3 channels" in refused(tmp_path, gray)
    integers = square_finder(size_hw=SIZE)
    integers.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    assert "neither float32 nor float16" in refused(tmp_path, integers)
    two = square_finder(size_hw=SIZE)
    two.graph.output.append(helper.make_tensor_value_info("output1", 1, [1, 32, 16, 24]))
    assert "its outputs are [1, 7, 126], [1, 32, 16, 24]" in refused(tmp_path, two)
    more = square_finder(size_hw=SIZE)
    more.graph.input.append(helper.make_tensor_value_info("sizes", 7, [1, 2]))
    assert "has 2 inputs" in refused(tmp_path, more)


def test_what_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"PK\x03\x04 not at all")
    (tmp_path / "sparse.onnx").touch()
    os.truncate(tmp_path / "sparse.onnx", 30 << 30)
    for name, said in (
        ("net.onnx", "is not an ONNX file"),
        ("missing.onnx", "No such file"),
        ("sparse.onnx", "it has 32212254720 bytes"),
    ):
        with pytest.raises(CannotImport, match=said):
            import_source(str(tmp_path / name))
