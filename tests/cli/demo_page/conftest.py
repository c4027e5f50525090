"""One real server with every kind of pipeline, and one page before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from networks import mean_color
from onnx import TensorProto, helper, numpy_helper
from page_process import PHOTOS, ROOT, PageProcess

from onestream.serving.building.build import build
from onestream.serving.server.server import Server

GRAY = {
    "preprocess": {
        "operations": [
            {"op": "decode", "color": "gray"},
            {"op": "letterbox", "size": [48, 64], "value": 114},
            {"op": "normalize", "mean": [0.5], "std": [0.25]},
        ]
    },
    "postprocess": {"kind": "raw"},
    "serving": {"cpu_instances": 1},
}


def with_details(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with one more output, *details*: the more an image has of them, the longer it is, up to 50 values."""
    (image,) = (value.name for value in model.graph.input)
    constants = {"per_detail": np.float32(100), "most": np.float32(50), "zero": np.array([0]), "one": np.array([1])}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    model.graph.node.extend(
        [
            helper.make_node("AveragePool", [image], ["smooth"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Sub", [image, "smooth"], ["rough"]),
            helper.make_node("Abs", ["rough"], ["size"]),
            helper.make_node("ReduceMean", ["size"], ["mean_size"], keepdims=0),
            helper.make_node("Mul", ["mean_size", "per_detail"], ["number"]),
            helper.make_node("Min", ["number", "most"], ["at_most"]),
            helper.make_node("Cast", ["at_most"], ["whole"], to=TensorProto.INT64),
            helper.make_node("Reshape", ["whole", "one"], ["length"]),
            helper.make_node("Flatten", ["rough"], ["all"]),
            helper.make_node("Slice", ["all", "zero", "length", "one"], ["details"]),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info("details", TensorProto.FLOAT, ["batch", "number"]))
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with classify, detect, matte and a raw pipeline in gray, which has an output of any length.

    One process a model: a page asks for one image.
    """
    folder = tmp_path_factory.mktemp("both")
    for name in ("classify", "detect", "matte"):
        pipeline = yaml.safe_load((ROOT / "pipelines" / f"{name}.yaml").read_text())
        pipeline["serving"]["cpu_instances"] = 1
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(pipeline))
        build(folder / f"{name}.yaml", folder=folder / "repository")
    (folder / "gray.yaml").write_text(yaml.safe_dump(GRAY))
    network = with_details(mean_color(("batch", 1, 48, 64)))
    (folder / "gray.onnx").write_bytes(network.SerializeToString())
    build(folder / "gray.yaml", folder=folder / "repository", onnx_file=folder / "gray.onnx")
    return folder / "repository"


@pytest.fixture(scope="package")
def served(built: Path) -> Iterator[Server]:
    models = ["classify", "classify_fused", "detect", "detect_fused", "matte", "matte_fused", "gray"]
    with Server(built, http_port=0, grpc_port=0, metrics_port=0, models=models) as running:
        yield running


@pytest.fixture(scope="package")
def page(served: Server) -> Iterator[PageProcess]:
    with PageProcess("--url", served.grpc_address, "--port", "0") as running:
        yield running


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(PHOTOS.glob("*.jpg"))}
