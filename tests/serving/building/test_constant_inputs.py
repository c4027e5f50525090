"""Inputs of a network beside the image, which are constants: with a batch, without one, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builds import build
from networks import network_of
from onnx import TensorProto, helper

from onestream.preprocess import Definition
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.constant_inputs import with_constants
from onestream.serving.graph.onnx_graph import prepare
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


def test_a_pipeline_serves_a_network_whose_other_inputs_it_fixes(tmp_path: Path) -> None:
    """Also one of a single image, which is given batches."""
    described: dict[str, Any] = {
        "preprocess": {"operations": OPERATIONS},
        "postprocess": {"kind": "raw"},
        "network_inputs": {"sizes": [1, 2, 3], "offset": 0.5},
    }
    onnx.save(scaled_mean(1), tmp_path / "mine.onnx")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(described))
    built = build(tmp_path / "mine.yaml", folder=tmp_path / "repository", onnx_file=tmp_path / "mine.onnx")
    definition, inputs = Definition.model_validate(described["preprocess"]), described["network_inputs"]
    with_batch = prepare(scaled_mean(), definition, inputs=inputs).SerializeToString()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    expected = pixels.mean(axis=(1, 2)) * [1, 2, 3] + 0.5
    for network in (built.folder / "mine_model" / "1" / "model.onnx", with_batch):
        np.testing.assert_allclose(OnnxRuntimeEngine(network, threads=1).run(pixels)["y"], expected, rtol=1e-5)
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
