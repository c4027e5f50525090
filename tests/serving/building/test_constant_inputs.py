"""Inputs of a network beside the image, which are constants: with a batch, without one, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from builds import build
from networks import network_of
from onnx import TensorProto, helper

from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.constant_inputs import with_constants
from onestream.serving.models.in_process import InProcess

OPERATIONS = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [8, 8]}, {"op": "output"}]


def scaled_mean(batch: int | str = "batch") -> onnx.ModelProto:
    """The mean of each channel times a factor of the image, plus one of all."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Cast", ["sizes"], ["factors"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["flat", "factors"], ["product"]),
        helper.make_node("Add", ["product", "offset"], ["y"]),
    ]
    model = network_of(nodes, {"image": [batch, 3, 8, 8], "offset": []}, {"y": [batch, 3]})
    model.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [batch, 3]))
    return model


@pytest.mark.parametrize("batch", ["batch", 1])
def test_a_pipeline_serves_a_network_whose_other_inputs_it_fixes(batch: int | str, tmp_path: Path) -> None:
    onnx.save(scaled_mean(batch), tmp_path / "mine.onnx")
    described = {
        "preprocess": {"operations": OPERATIONS},
        "postprocess": {"kind": "raw"},
        "network_inputs": {"sizes": [1, 2, 3], "offset": 0.5},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(described))
    built = build(tmp_path / "mine.yaml", folder=tmp_path / "repository", onnx_file=tmp_path / "mine.onnx")
    network = OnnxRuntimeEngine(built.folder / "mine_model" / "1" / "model.onnx", threads=1)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    expected = pixels.mean(axis=(1, 2)) * [1, 2, 3] + 0.5
    np.testing.assert_allclose(network.run(pixels)["y"], expected, rtol=1e-5)
    assert InProcess(built.folder / "mine_fused").kind == "raw"


@pytest.mark.parametrize(
    ("values", "error", "named"),
    [
        ({"size": 1}, BadPipeline, "names 'size'; the inputs are image, offset, sizes"),
        ({"sizes": [1, 2]}, BadNetwork, r"has \[2\] numbers for 'sizes', which takes \['any', 3\]"),
        ({"offset": [1, 2]}, BadNetwork, r"has \[2\] numbers for 'offset', which takes \[\]"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, float], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        with_constants(scaled_mean(), values)
