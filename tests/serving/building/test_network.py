"""ONNX files are made servable, or refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import mean_color, network_of
from onnx import TensorProto, helper

from onestream.preprocess import Decode, Definition, Normalize, Output, Resize, StampMismatch
from onestream.preprocess.backends.base import network_layout
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine import served as served_network
from onestream.serving.engine.stamp import stamp_of
from onestream.serving.errors import BadNetwork
from onestream.serving.graph import onnx_graph

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def definition(**output: str) -> Definition:
    operations = [Decode(), Resize(mode="exact", size=(32, 32))]
    if output.get("dtype") != "uint8":
        operations.append(Normalize(mean=MEAN, std=STD))
    return Definition(operations=(*operations, Output(**output)))


def pixels(count: int = 4) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def run_plain(model: onnx.ModelProto, chain: Definition, batch: np.ndarray) -> np.ndarray:
    """The network without its door, fed by the reference's normalization, one image at a time."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: network_layout(chain, image)[None]})[0] for image in batch])


def run(model: onnx.ModelProto, batch: np.ndarray) -> np.ndarray:
    """The scores of a served network."""
    return OnnxRuntimeEngine(model.SerializeToString(), threads=1).run({"pixels": batch})["scores_out"]


@pytest.mark.parametrize("name", ["input", "pixels"])
def test_the_door_does_what_the_reference_does(name: str) -> None:
    """On every level, too: an identity network shows the door's own output. Batch mates change nothing."""
    model = mean_color(input_name=name)
    served = onnx_graph.prepare(model, definition())
    result = run(served, pixels())
    np.testing.assert_array_equal(result, run_plain(model, definition(), pixels()))
    for index in range(4):
        np.testing.assert_array_equal(run(served, pixels()[index : index + 1])[0], result[index])
    shape = ["batch", 3, 32, 32]
    identity = network_of([helper.make_node("Identity", [name], ["scores_out"])], {name: shape}, {"scores_out": shape})
    levels = np.arange(1024, dtype=np.uint8).reshape(1, 32, 32, 1).repeat(3, axis=3)
    seen = run(onnx_graph.prepare(identity, definition()), levels)
    np.testing.assert_array_equal(seen[0], network_layout(definition(), levels[0]))


@pytest.mark.parametrize(
    "model",
    [mean_color((1, 3, 32, 32)), mean_color((4, 3, 32, 32)), mean_color((1, 3, 32, 32), reshape_to=(1, 3)),
     mean_color((1, 3, 32, 32), reshape_to=(1, -1)), mean_color(("n", 3, "h", "w"))],
    ids=["batch 1", "batch 4", "reshape constant", "reshape inferred", "free size"],
)  # fmt: skip
def test_fixed_files_are_made_dynamic(model: onnx.ModelProto) -> None:
    served = onnx_graph.prepare(model, definition())
    (output,) = served_network.outputs(served)
    assert (output.name, output.dtype, output.dims) == ("scores_out", "float32", (7,))
    engine = OnnxRuntimeEngine(served.SerializeToString(), threads=1)
    assert engine.run_together({"pixels": pixels(5)})["scores_out"].shape == (5, 7)


def test_float16_and_uint8_networks_are_served() -> None:
    half = onnx_graph.prepare(mean_color(dtype=TensorProto.FLOAT16), definition(dtype="float16"))
    assert run(half, pixels()).dtype == np.float16
    cast = mean_color(input_name="cast")
    cast.graph.node.insert(0, helper.make_node("Cast", ["raw"], ["cast"], to=TensorProto.FLOAT))
    del cast.graph.input[:]
    cast.graph.input.append(helper.make_tensor_value_info("raw", TensorProto.UINT8, ["batch", 3, 32, 32]))
    assert run(onnx_graph.prepare(cast, definition(dtype="uint8")), pixels()).shape == (4, 7)


@pytest.mark.parametrize(
    ("model", "chain", "reason"),
    [
        (mean_color(("b", 3, 64, 64)), definition(), r"takes \[batch, 3, 64, 64\].*gives \[batch, 3, 32, 32\]"),
        (mean_color(("b", 1, 32, 32)), definition(), "takes .* the definition gives"),
        (mean_color(), definition(dtype="float16"), "takes float.*gives float16"),
        (mean_color(), definition(layout="NHWC"), "the definition gives .*NHWC"),
        (mean_color((2, 3, 32, 32), reshape_to=(1, 6)), definition(), "does not run with one image"),
        (mean_color(), Definition(operations=[Decode(), Resize(mode="shorter", size=32)]), "depends on the image"),
    ],
    ids=["size", "channels", "dtype", "layout", "not one image", "size of image"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(model: onnx.ModelProto, chain: Definition, reason: str) -> None:
    with pytest.raises(BadNetwork, match=reason):
        onnx_graph.prepare(model, chain)


def reshaped(*, turned: bool = False, allowzero: int = 0) -> onnx.ModelProto:
    """A network of one image whose Reshape has a constant, as PyTorch exports it; ``turned``: the batch comes last."""
    model = mean_color((1, 3, 32, 32), reshape_to=(1, -1))
    model.opset_import[0].version = 14
    (node,) = (node for node in model.graph.node if node.op_type == "Reshape")
    node.attribute.append(helper.make_attribute("allowzero", allowzero))
    if turned:
        node.input[0] = "turned"
        model.graph.node.insert(1, helper.make_node("Transpose", ["pooled"], ["turned"], perm=[1, 2, 3, 0]))
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (mean_color(), r"^$"),
        (mean_color(mix_batch=True), "^output 'scores_out' of an image depends on the other images of its batch$"),
        (mean_color(("n", 3, 32, 32), reshape_to=(1, 3)), "^the network does not run with a dynamic batch: "),
        (reshaped(turned=True), "^the network does not run with a dynamic batch: "),
        (reshaped(allowzero=1), r"^$"),
    ],
    ids=["batches", "mixes its batch", "one image only", "its Reshape takes no batch", "allowzero"],
)
def test_a_network_says_why_it_may_only_run_one_image_at_a_time(model: onnx.ModelProto, reason: str) -> None:
    served = onnx_graph.prepare(model, definition())
    assert re.search(reason, onnx_graph.why_not_batched(served))
    assert onnx_graph.prepare(served, definition()) == served
    np.testing.assert_array_equal(run(served, pixels()), run_plain(model, definition(), pixels()))


def test_what_is_no_network_of_one_image_and_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is not a network at all")
    for name, said in (("text.onnx", "not an ONNX file"), ("absent.onnx", "No such file")):
        with pytest.raises(BadNetwork, match=said):
            onnx_graph.load(tmp_path / name)
    model = mean_color()
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1]))
    with pytest.raises(BadNetwork, match=r"got 2: input, mask"):
        onnx_graph.prepare(model, definition())
    nodes = [
        helper.make_node("ReduceMean", ["input"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("ArgMax", ["mean"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["names", "best"], ["label"]),
    ]
    names = {"names": np.array(["r", "g", "b"], dtype=object)}
    network = network_of(nodes, {"input": ["n", 3, 32, 32]}, {"label": ["n"]}, names, gives=TensorProto.STRING)
    with pytest.raises(BadNetwork, match="output 'label' holds text; expected numbers: name others in network_outputs"):
        onnx_graph.prepare(network, definition())


def test_the_stamp_is_written_and_checked() -> None:
    served = onnx_graph.prepare(mean_color(), definition())
    assert OnnxRuntimeEngine(served.SerializeToString(), threads=1).definition == definition()
    assert onnx_graph.prepare(served, definition()) == served
    exported = mean_color()
    helper.set_model_props(exported, stamp_of(definition()))
    onnx_graph.prepare(exported, definition())
    other = Definition(operations=[Decode(), Resize(mode="exact", size=(32, 32)), Normalize(mean=MEAN, std=MEAN)])
    with pytest.raises(StampMismatch, match=r"operations\[2\].std") as caught:
        onnx_graph.prepare(exported, other)
    assert definition().digest[:12] in str(caught.value)
    assert other.digest[:12] in str(caught.value)
    bgr = Definition(operations=[Decode(color="bgr"), *definition().operations[1:]])
    with pytest.raises(StampMismatch, match=r"operations\[0\]\.color: 'rgb' != 'bgr'"):
        onnx_graph.prepare(exported, bgr)
