"""The pixels as the first quantized tensor: the same network, without its normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from int8_networks import HALVES, IMAGENET
from networks import network_of
from onnx import TensorProto, helper, numpy_helper

from onestream.preprocess import Decode, Definition, Normalize, Output, Resize
from onestream.serving.building.quantization.pixel_door import with_pixels_first
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.graph.onnx_graph import prepare

SIDE = 12
FLOAT = TensorProto.FLOAT


def definition(normalize: dict[str, Any] | None, layout: str = "NCHW", dtype: str = "float32") -> Definition:
    steps = [Normalize(**{"op": "normalize", **normalize})] if normalize else []
    resize = Resize(mode="exact", size=(SIDE, SIDE))
    return Definition(operations=(Decode(), resize, *steps, Output(layout=layout, dtype=dtype)))


def network(
    *before: tuple[str, Any], layout: str = "NCHW", pad: int = 1, groups: int = 1, bias: bool = True
) -> onnx.ModelProto:
    """A convolution of the input, after operations with constants on their right."""
    rng = np.random.default_rng(2)
    constants = {"weights": rng.normal(size=(6, 3 // groups, 3, 3)).astype(np.float32)}
    nodes, value = [], "input"
    for number, (operator, constant) in enumerate(before):
        constants[f"constant_{number}"] = np.asarray(constant, np.float32)
        nodes.append(helper.make_node(operator, [value, f"constant_{number}"], [f"before_{number}"]))
        value = f"before_{number}"
    if layout == "NHWC":
        nodes.append(helper.make_node("Transpose", [value], ["planes"], perm=[0, 3, 1, 2]))
        value = "planes"
    given = [value, "weights"]
    if bias:
        constants["bias"] = rng.normal(size=6).astype(np.float32)
        given.append("bias")
    nodes.append(helper.make_node("Conv", given, ["out"], name="conv", pads=[pad] * 4, group=groups))
    side = SIDE - 2 + 2 * pad
    shape = ["batch", 3, SIDE, SIDE] if layout == "NCHW" else ["batch", SIDE, SIDE, 3]
    return network_of(nodes, {"input": shape}, {"out": ["batch", 6, side, side]}, constants)


def compared(model: onnx.ModelProto, by: Definition) -> tuple[str, np.ndarray, np.ndarray]:
    """The kind of door, and the outputs of both for the same noise."""
    served = prepare(model, by)
    before = served.SerializeToString()
    changed, door = with_pixels_first(served, by)
    assert served.SerializeToString() == before, "the argument is not changed"
    onnx.checker.check_model(changed, full_check=True)
    pixels = np.random.default_rng(4).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    one, other = (
        OnnxRuntimeEngine(m.SerializeToString(), threads=1).run({"pixels": pixels})["out"] for m in (served, changed)
    )
    operators = {node.op_type for node in changed.graph.node}
    assert ("DequantizeLinear" in operators) == (door != "float32")
    assert bool(operators & {"Cast", "Sub", "Div", "Add", "Mul"}) == (door == "float32")
    return door, one, other


def close(one: np.ndarray, other: np.ndarray) -> bool:
    """Within the rounding of float32 sums of 27 products."""
    return bool(np.allclose(one, other, rtol=0, atol=1e-5 * np.abs(one).max()))


WHOLE = [HALVES, {"scale": 255, "mean": [0] * 3, "std": [1] * 3}, {"scale": 1, "mean": [0] * 3, "std": [9] * 3}, None]
TO_ONE = (("Mul", 2 / 255), ("Sub", [[[1.0]]]), ("Div", np.full((1, 3, 1, 1), 0.5)))
"""With a mean of 127.5, which is no level."""


@pytest.mark.parametrize(
    ("model", "by", "expected"),
    [
        *((network(), definition(one), "pixels") for one in WHOLE),
        *((network(layout="NHWC"), definition(one, "NHWC"), "pixels") for one in WHOLE),
        # What a network does to its input itself is taken in.
        (network(("Sub", 5.0), ("Mul", 0.25)), definition(None), "pixels"),
        (network(*TO_ONE, pad=0), definition(None), "folded"),
        # Channels that differ are folded into a convolution without padding.
        *((network(pad=0, bias=bias), definition(IMAGENET), "folded") for bias in (False, True)),
        *((network(pad=0, groups=3, bias=bias), definition(IMAGENET), "folded") for bias in (False, True)),
    ],
)
def test_the_door_is_exact(model: onnx.ModelProto, by: Definition, expected: str) -> None:
    door, one, other = compared(model, by)
    assert door == expected
    assert close(one, other)


@given(mean=st.integers(0, 255), std=st.floats(0.1, 500), pad=st.integers(0, 1))
def test_any_whole_mean_is(mean: int, std: float, pad: int) -> None:
    normalize = {"scale": 1, "mean": [mean] * 3, "std": [std] * 3}
    door, one, other = compared(network(pad=pad), definition(normalize))
    assert door == "pixels"
    assert close(one, other)


@pytest.mark.parametrize("normalize", [IMAGENET, {"scale": 255, "mean": [0.5] * 3, "std": [0.5] * 3}])
def test_with_padding_only_the_border_differs_by_at_most_half_a_level(normalize: dict[str, Any]) -> None:
    door, one, other = compared(network(), definition(normalize))
    assert door == "folded"
    assert close(one[:, :, 1:-1, 1:-1], other[:, :, 1:-1, 1:-1])
    # Half a level of each padded value, times the weights that meet it: those of five of nine at a corner.
    weights = np.abs(numpy_helper.to_array(network().graph.initializer[0]))
    half = 0.5 / 255 / np.array(normalize["std"])
    bound = (weights * half[:, None, None]).sum(axis=(1, 2, 3))
    border = np.abs(one - other).max(axis=(0, 2, 3))
    assert (border <= bound).all()
    assert border.max() > 0, "or the test would show nothing"


@pytest.mark.parametrize(
    ("model", "normalize"),
    [
        # A mean that no level is close to.
        (network(), {"scale": 1, "mean": [0, 300, 0], "std": [1, 1, 1]}),
        # The sign turns.
        (network(("Mul", -1.0)), IMAGENET),
        # A constant that differs from place to place.
        (network(("Mul", np.linspace(1, 2, SIDE))), IMAGENET),
    ],
)
def test_else_the_network_stays_as_it_is(model: onnx.ModelProto, normalize: dict[str, Any]) -> None:
    door, one, other = compared(model, definition(normalize))
    assert door == "float32"
    assert np.array_equal(one, other)


def test_another_type_than_float32_stays_as_it_is() -> None:
    by = definition(None, dtype="uint8")
    model = network()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    model.graph.node.insert(0, helper.make_node("Cast", ["input"], ["float_input"], to=FLOAT))
    model.graph.node[1].input[0] = "float_input"
    served = prepare(model, by)
    assert with_pixels_first(served, by) == (served, "float32")
