"""Networks whose outputs are not what their postprocessing reads, and labels that do not fit: refused at the build."""

from __future__ import annotations

import re
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from networks import network_of
from onnx import helper
from ultralytics_files import Family, square_finder

from onestream.postprocess.kinds import labels_beside
from onestream.postprocess.kinds.detection import Detection
from onestream.postprocess.kinds.raw import Raw
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.postprocess.labels import read_labels
from onestream.preprocess import Decode, Definition, Resize
from onestream.preprocess.interop import from_letterbox
from onestream.serving.building.named_files import labels_of
from onestream.serving.building.network_source import ServedNetwork
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_graph import classes_of, prepare
from onestream.serving.pipeline import Pipeline

SIDE = 32
LETTERBOX = from_letterbox(SIDE)
FOUND = [4.0, 4.0, 20.0, 20.0, 0.9, 1.0]
"""A row of *boxes*: corners, score and class."""


def giving(*rows: list[float], metadata: dict[str, Any] | None = None) -> onnx.ModelProto:
    """A network that gives these rows and others of zeros, whatever the picture."""
    values = np.zeros((300, len(rows[0])), np.float32)
    values[: len(rows)] = rows
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["mean", "axis"], ["flat"]),
        helper.make_node("Mul", ["flat", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "rows"], ["output0"]),
    ]
    constants = {"axis": np.array([3]), "zero": np.float32(0), "rows": values}
    inputs, outputs = {"images": ["batch", 3, SIDE, SIDE]}, {"output0": ["batch", *values.shape]}
    model = network_of(nodes, inputs, outputs, constants)
    helper.set_model_props(model, {key: str(value) for key, value in (metadata or {}).items()})
    return model


@pytest.mark.parametrize("task", ["pose", "obb", "segment", "classify"])
def test_an_export_for_another_task_is_no_detector(task: str) -> None:
    network = square_finder(size_hw=(SIDE, SIDE), task=task)
    with pytest.raises(BadNetwork, match=f"export for the task '{task}', and detection reads the outputs of 'detect'"):
        prepare(network, LETTERBOX, Detection(family="yolo"))
    prepare(network, LETTERBOX, Raw())


def test_columns_that_the_metadata_name_no_classes_for_are_no_classes() -> None:
    """A file without its task, whose keypoints would be classes."""
    network = square_finder("yolov5", size_hw=(SIDE, SIDE), names=["person"])
    with pytest.raises(BadNetwork, match="fits no detector of its metadata's 1 classes"):
        prepare(network, LETTERBOX, Detection(family="yolov5"))


@pytest.mark.parametrize(
    ("family", "row", "said"),
    [
        ("boxes", [*FOUND[:4], 639.0, 1.0], "4 of 4 scores are outside 0 to 1, such as 639"),
        ("boxes", [*FOUND[:5], 0.5], "4 of 4 classes are no whole numbers, such as 0.5"),
        ("boxes", [*FOUND[:5], -2.0], "classes are no whole numbers, such as -2"),
        ("yolov5", [*FOUND[:4], 0.5, 1.5, 2.5], "4 of 2400 scores are outside 0 to 1, such as 1.25"),
        ("yolov5", [*FOUND[:4], 1.0, -4.0, 0.5], "scores are outside 0 to 1, such as -4"),
        ("detr", [*FOUND[:4], 0.5, 0.5, 7.0], "scores are outside 0 to 1, such as 7"),
    ],
)
def test_what_is_no_score_or_class_is_counted_and_refused(family: Any, row: list[float], said: str) -> None:
    with pytest.raises(BadNetwork, match=f"{said}.*: its outputs are not what family {family} reads"):
        prepare(giving(row), LETTERBOX, Detection(family=family))


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (-1.0, False), (9.0, False)])
def test_a_map_of_text_holds_probabilities(factor: float, fits: bool) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Mul", ["mean", "factor"], ["map"]),
    ]
    sides: list[int | str | None] = ["batch", "height", "width"]
    inputs, outputs = {"images": ["batch", 3, "height", "width"]}, {"map": sides}
    network = network_of(nodes, inputs, outputs, {"factor": np.float32(factor)})
    definition = Definition(operations=[Decode(), Resize(mode="shorter", size=64), *LETTERBOX.operations[-2:]])
    refused = pytest.raises(BadNetwork, match=r"values are outside 0 to 1, .*: its outputs are not what text_lines")
    with nullcontext() if fits else refused:
        prepare(network, definition, TextLines())


def test_rows_in_which_nothing_was_found_may_hold_anything() -> None:
    served = prepare(
        giving(FOUND, [*FOUND[:4], -1.0, -1.0], [*FOUND[:4], 0.1, 0.5]), LETTERBOX, Detection(family="boxes")
    )
    assert [output.name for output in served.graph.output] == [
        "candidate_boxes", "candidate_scores", "candidate_classes",
    ]  # fmt: skip


@pytest.mark.parametrize(("names", "fits"), [(["a"], False), (["a", "b"], True)])
def test_a_class_outside_the_labels_is_refused(names: list[str], fits: bool, tmp_path: Path) -> None:
    fields = {
        "preprocess": {"operations": LETTERBOX.model_dump(mode="json")["operations"]},
        "postprocess": {"kind": "detection", "family": "boxes", "labels": names},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields))
    (tmp_path / "mine.onnx").write_bytes(giving(FOUND).SerializeToString())

    refused = pytest.raises(BadPipeline, match=r"labels has 1 entries, and the network finds class 1")
    with nullcontext() if fits else refused:
        ServedNetwork.of(
            Pipeline.from_file(tmp_path / "mine.yaml"),
            tmp_path / "mine.onnx",
            files=[tmp_path / "repository" / "model.onnx"],
            beside=tmp_path,
            calibration=None,
            progress=lambda _: None,
        )


RT_DETR = {"stride": 32, "task": "detect", "head": "RTDETRDecoder", "names": {0: "a", 1: "b"}, "end2end": False}


def test_rows_of_rt_detr_are_read_by_their_layout() -> None:
    """With two classes, 6 columns could as well be a score for each."""
    network = giving([0.5, 0.5, 0.25, 0.5, 0.9, 0.0], [0.25, 0.25, 0.1, 0.1, 0.02, 1.0], metadata=RT_DETR)
    with pytest.raises(BadNetwork, match=r"\{family: boxes, box_format: cxcywh, normalized: true\}; .* family detr"):
        prepare(network, LETTERBOX, Detection(family="detr"))
    with pytest.raises(BadNetwork, match="box_format: cxcywh"):
        prepare(network, LETTERBOX, Detection(family="boxes"))
    served = prepare(network, LETTERBOX, Detection(family="boxes", box_format="cxcywh", normalized=True))
    found = OnnxRuntimeEngine(served.SerializeToString(), threads=1).run(
        {"pixels": np.zeros((1, SIDE, SIDE, 3), np.uint8)}
    )
    np.testing.assert_allclose(found["candidate_boxes"][0, 0], [12, 8, 20, 24], atol=1e-5)
    np.testing.assert_allclose(found["candidate_scores"][0, :2], [0.9, 0.02])
    np.testing.assert_array_equal(found["candidate_classes"][0, :2], [0, 1])


SEEN: dict[Family, str] = {
    "yolo": "[batch, 7, 735]",
    "yolov5": "[batch, 2205, 8]",
    "boxes": "[batch, 300, 6]",
    "detr": "[batch, 300, 7]",
}
FAMILIES = ("yolo", "yolov5", "yolox", "ssd", "nanodet", "detr", "boxes")


@pytest.mark.slow
@pytest.mark.parametrize(("export", "family"), [pair for pair in product(SEEN, FAMILIES) if pair[0] != pair[1]])
def test_a_wrong_family_is_refused_with_the_usual_one(export: Family, family: Any) -> None:
    with pytest.raises((BadNetwork, BadPipeline)) as caught:
        prepare(square_finder(export, size_hw=(160, 224)), from_letterbox((160, 224)), Detection(family=family))
    said = str(caught.value)
    if (export, family) in (("boxes", "yolov5"), ("detr", "yolov5"), ("boxes", "detr")):
        # Their sizes suit both; the metadata say which.
        assert f"say postprocess: {{family: {export}}}; the pipeline says family {family}" in said
    else:
        assert f"the family {family} takes " in said
        assert SEEN[export] in said
        assert f"usual for the family {export}" in said


@pytest.mark.parametrize("labels", [[], [""], ["a", " "], ["a\nb"], [1, 2], {"0": "a"}], ids=str)
def test_names_that_are_none_or_too_few_are_refused(labels: Any) -> None:
    options = {"kind": "detection", "family": "yolo", "labels": labels}
    fields = {"name": "mine", "preprocess": LETTERBOX.model_dump(mode="json"), "postprocess": options}
    with pytest.raises(BadPipeline, match=r"postprocess\.detection\.labels"):
        Pipeline.from_fields(Path("mine.yaml"), fields)
    yolo = Detection(family="yolo")
    classes = classes_of(prepare(square_finder(size_hw=(SIDE, SIDE)), LETTERBOX, yolo))
    with pytest.raises(BadPipeline, match=r"postprocess\.labels has 2 entries, the network has 3 classes"):
        yolo.labels_for(classes, "a\nb\n")


LABELLED: dict[str, dict[str, Any]] = {
    "classification": {"labels": "names.txt"},
    "detection": {"family": "yolo", "labels": "names.txt"},
    "segmentation": {"labels": "names.txt"},
    "text": {"characters": "names.txt"},
}
"""How a kind names the file of its labels."""


@pytest.mark.parametrize("kind", LABELLED)
@pytest.mark.parametrize(
    "content",
    [
        *(b"a\nb\n", b"a\r\nb", b"a\rb\r", b"\xef\xbb\xbfa\n", "one\u2028\x0bline\n b \n".encode()),
        *(b"a\n\nc\n", b"a\n  \nc\n", b"", b"a\n\n", b"\n", "\u0153uf".encode("utf-16")),
    ],
)
def test_the_build_takes_the_labels_that_the_model_loads(tmp_path: Path, kind: str, content: bytes) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    postprocess = {"kind": kind, **LABELLED[kind]}
    pipeline = Pipeline.model_validate({"name": "mine", "preprocess": LETTERBOX, "postprocess": postprocess})
    try:
        names = read_labels(tmp_path / "names.txt", spaces=kind == "text")
    except ValueError as error:
        with pytest.raises(BadPipeline, match=re.escape(str(error))):
            labels_of(pipeline, tmp_path)
        return
    written = labels_of(pipeline, tmp_path)
    (tmp_path / "labels.txt").write_bytes(written.encode())
    assert labels_beside(pipeline.postprocess, tmp_path) == names
