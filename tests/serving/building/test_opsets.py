"""Everything that a build does to a graph, over the opsets from 11 to 23, and on what PyTorch's exporters write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from int8_networks import IMAGENET, SIDE, color_network
from onnx import helper

from onestream.postprocess.kinds.classification import Classification
from onestream.postprocess.kinds.embedding import Embedding
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.kinds.text import Text
from onestream.preprocess import Decode, Definition, Normalize, Output, Resize
from onestream.serving.building.quantization.quantize import Quantizable
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.precision import to_float16
from onestream.serving.engine.quantization import Settings
from onestream.serving.engine.served import cast_first
from onestream.serving.graph.onnx_graph import prepare, why_not_batched
from onestream.serving.graph.onnx_postprocess import with_labels, with_postprocess

OPSETS = range(11, 24)
Arrays = dict[str, np.ndarray]


def definition(side: int = SIDE) -> Definition:
    resize = Resize(mode="exact", size=(side, side))
    return Definition(operations=[Decode(), resize, Normalize(**IMAGENET), Output()])


def shown(side: int = SIDE) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, (4, side, side, 3), dtype=np.uint8)


def run(network: onnx.ModelProto, side: int = SIDE) -> Arrays:
    onnx.checker.check_model(network, full_check=True)
    return OnnxRuntimeEngine(network.SerializeToString(), threads=1).run({"pixels": shown(side)})


def check_surgery(network: onnx.ModelProto, logits: str, *, side: int = SIDE) -> None:
    """The postprocessing, float16 and int8 of a classifier; the first convolution pads, so that pixels are too."""
    served = prepare(network, definition(side))
    assert why_not_batched(served) == ""
    expected = run(served, side)[logits]
    best = expected.argmax(axis=1)
    labelled = with_labels(with_postprocess(served, Classification(top_k=2)), None)
    assert labelled.metadata_props == served.metadata_props, "the stamp stays"
    answered = run(labelled, side)
    np.testing.assert_array_equal(answered["class_ids"][:, 0], best)
    assert answered["labels"][:, 0].tolist() == best.astype(str).tolist()
    lengths = np.linalg.norm(run(with_postprocess(served, Embedding()), side)["embedding"], axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(run(to_float16(served), side)[logits], expected, atol=0.01 * largest)
    np.testing.assert_array_equal(run(cast_first(served), side)[logits], expected)
    quantizable = Quantizable(served, definition(side), list(shown(side)))
    assert quantizable.door == "folded"
    for made in (quantizable.for_cpu(Settings()), quantizable.for_tensorrt(Settings())):
        np.testing.assert_allclose(run(made, side)[logits], expected, atol=0.05 * largest)


@pytest.mark.parametrize("opset", OPSETS)
def test_a_classifier(opset: int) -> None:
    check_surgery(color_network(opset=opset), "logits")


@pytest.mark.parametrize("opset", OPSETS)
def test_a_matte_and_a_recognizer(opset: int) -> None:
    network = color_network(opset=opset)
    del network.graph.node[-3:], network.graph.output[:]
    last = network.graph.node[-1].output[0]
    axes = network.graph.initializer.add()
    axes.CopyFrom(onnx.numpy_helper.from_array(np.array([0, 8, SIDE * SIDE]), "steps"))
    network.graph.node.append(helper.make_node("Reshape", [last, "steps"], ["lines"]))
    network.graph.output.append(helper.make_tensor_value_info("lines", 1, ["batch", 8, SIDE * SIDE]))
    read = run(prepare(network, definition(), Text()))
    assert read["ctc_classes"].shape == read["ctc_scores"].shape == (4, 8)
    steps = np.array([0, SIDE, -1])
    axes.CopyFrom(onnx.numpy_helper.from_array(steps, "steps"))
    network.graph.output[0].CopyFrom(helper.make_tensor_value_info("lines", 1, ["batch", SIDE, 8 * SIDE]))
    served = prepare(network, definition())
    assert run(with_postprocess(served, Matte()))["matte"].dtype == np.uint8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamo", "opset", "dynamic"),
    [
        (False, 11, False),
        (False, 17, True),
        (False, 20, False),
        (True, None, False),
        (True, 18, True),
        (True, 23, False),
    ],
)
def test_what_pytorch_exports(dynamo: bool, opset: int | None, dynamic: bool, tmp_path: Path) -> None:
    """Both exporters; opset None is the one that they choose."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.last = torch.nn.Linear(8, 5)

        def forward(self, images: Any) -> Any:
            features = torch.relu(self.norm(self.first(images))).mean((2, 3), keepdim=True)
            return self.last(features.reshape(features.shape[0], -1))

    torch.manual_seed(0)
    file, image = tmp_path / "network.onnx", torch.zeros(2 if dynamic else 1, 3, 24, 24)
    options: dict[str, Any] = {"dynamo": dynamo, "input_names": ["images"], "output_names": ["logits"]}
    if opset is not None:
        options["opset_version"] = opset
    if dynamic and dynamo:
        options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    elif dynamic:
        options["dynamic_axes"] = {"images": {0: "batch"}, "logits": {0: "batch"}}
    torch.onnx.export(Network().eval(), (image,), str(file), **options)
    network = onnx.load(file)
    if opset is not None:
        assert network.opset_import[0].version == opset
    check_surgery(network, "logits", side=24)
