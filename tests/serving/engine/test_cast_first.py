"""Casting pixels before they are transposed changes where TensorRT can follow, and no value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import mean_color, network_of
from onnx import TensorProto, helper
from served_networks import convolutional, definition, random_pixels, run, served

from onestream.serving.engine import served as served_network
from onestream.serving.graph import onnx_graph


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("model", [mean_color(), convolutional()], ids=["mean_color", "convolutional"])
def test_every_bit_stays_the_same(model: onnx.ModelProto) -> None:
    ready = served(model)
    moved = served_network.cast_first(ready)
    onnx.checker.check_model(moved, full_check=True)
    assert operators(ready)[:2] == ["Transpose", "Cast"]
    assert operators(moved)[:2] == ["Cast", "Transpose"]
    for name, expected in run(ready, random_pixels(4)).items():
        np.testing.assert_array_equal(run(moved, random_pixels(4))[name], expected)


def test_every_bit_of_the_real_network_stays_the_same(repository: Path) -> None:
    ready = onnx_graph.load(repository / "classify_model" / "1" / "model.onnx")
    pixels = random_pixels(2, size=224)
    np.testing.assert_array_equal(run(served_network.cast_first(ready), pixels)["logits"], run(ready, pixels)["logits"])


def test_the_argument_and_the_stamp_stay() -> None:
    ready = served()
    before = ready.SerializeToString()
    assert served_network.cast_first(ready).metadata_props == ready.metadata_props
    assert ready.SerializeToString() == before


def of_bytes(nodes: list[onnx.NodeProto], *, gives: int) -> onnx.ModelProto:
    """A network of these nodes that takes bytes, made ready."""
    shape = ["batch", 3, 32, 32]
    model = network_of(nodes, {"input": shape}, {"y": shape}, dtype=TensorProto.UINT8, gives=gives, opset=17)
    return onnx_graph.prepare(model, definition(dtype="uint8"))


def test_a_network_that_takes_bytes_and_casts_them_itself() -> None:
    """The door has no cast then; the network's own is moved, once for several readers."""
    nodes = [
        helper.make_node("Cast", ["input"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["input"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    ready = of_bytes(nodes, gives=TensorProto.FLOAT)
    moved = served_network.cast_first(ready)
    onnx.checker.check_model(moved, full_check=True)
    assert operators(moved) == ["Cast", "Transpose", "Identity", "Identity", "Add"]
    np.testing.assert_array_equal(run(moved, random_pixels(2))["y"], run(ready, random_pixels(2))["y"])


def test_pixels_that_are_used_as_bytes_are_left_alone() -> None:
    ready = of_bytes([helper.make_node("Max", ["input", "input"], ["y"])], gives=TensorProto.UINT8)
    assert served_network.cast_first(ready) == ready
