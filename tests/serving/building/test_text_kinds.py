"""Text at the build: the recognizer's tail, its characters, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builds import build
from networks import ending_in, network_of
from onnx import TensorProto, helper, numpy_helper

from onestream.postprocess.kinds.detection import Detection
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.kinds.text import Text
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.preprocess import Decode, Definition, Pad, Resize
from onestream.preprocess.operations import Region
from onestream.serving.building.build import Built
from onestream.serving.building.repository import answer_of, small_pixels
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.served import outputs
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.graph.tails import append_ctc_tail

OPERATIONS = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [32, 64]}, {"op": "output"}]
FREE = Definition(operations=[Decode(), Resize(mode="shorter", size=32)])
TURNS = {"kind": "rotation", "degrees": [0, 180]}
CLASSES = 6
Shape = tuple[int | str | None, ...]


def columns(*, width: int | str = "width", softmax: bool = True, characters: str | None = None) -> onnx.ModelProto:
    """A recognizer of a kind: a step for each column, whose logits are its mean levels times a weight."""
    weights = np.random.default_rng(5).normal(scale=9, size=(3, CLASSES)).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("Transpose", ["mean"], ["steps"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["steps", "weights"], ["logits"]),
        helper.make_node("Softmax" if softmax else "Identity", ["logits"], ["y"], **({"axis": 2} if softmax else {})),
    ]
    inputs, outputs = {"x": ["batch", 3, "height", width]}, {"y": ["batch", "steps", CLASSES]}
    model = network_of(nodes, inputs, outputs, {"weights": weights})
    if characters is not None:
        model.metadata_props.add(key="character", value=characters)
    return model


def built(folder: Path, model: onnx.ModelProto, postprocess: dict[str, Any], **fields: Any) -> Built:
    onnx.save(model, folder / "mine.onnx")
    pipeline = {"preprocess": {"operations": OPERATIONS}, "postprocess": postprocess, **fields}
    (folder / "mine.yaml").write_text(yaml.safe_dump(pipeline))
    return build(folder / "mine.yaml", folder=folder / "repository", onnx_file=folder / "mine.onnx")


def passing(
    shape: Shape, *, dtype: int = TensorProto.FLOAT, opset: int = 13, last: str = "Softmax", name: str = "y"
) -> onnx.ModelProto:
    """What comes in leaves, after the last operator."""
    attributes = {"axis": 2} if last == "Softmax" else {}
    node = helper.make_node(last, ["x"], [name], **attributes)
    return network_of([node], {"x": shape}, {name: shape}, dtype=dtype, opset=opset)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize(("numpy_type", "dtype"), [("float16", TensorProto.FLOAT16), ("float32", TensorProto.FLOAT)])
@pytest.mark.parametrize("last", ["Softmax", "Identity"])
def test_the_best_class_of_each_step_and_its_probability(numpy_type: str, dtype: int, opset: int, last: str) -> None:
    model = passing(("batch", "steps", 300), dtype=dtype, opset=opset, last=last)
    assert append_ctc_tail(model) == 300
    logits = np.random.default_rng(1).normal(scale=3, size=(2, 17, 300)).astype(numpy_type)
    # Equal ones: the lower class.
    logits[0, 3, [40, 20]] = 30
    found = OnnxRuntimeEngine(model.SerializeToString(), threads=1).run_together({"x": logits})
    dtypes = [(name, value.dtype.name) for name, value in found.items()]
    assert dtypes == [("ctc_classes", "int32"), ("ctc_scores", "float32")]
    exact = np.exp(logits.astype(np.float64))
    exact /= exact.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(found["ctc_scores"], exact.max(axis=2), rtol=1e-3 if numpy_type == "float16" else 1e-5)
    assert found["ctc_classes"][0, 3] == 20
    # float16 rounds probabilities of nearly the same logits to one.
    chosen = np.take_along_axis(exact, found["ctc_classes"][..., None].astype(np.int64), axis=2)[..., 0]
    np.testing.assert_allclose(chosen, exact.max(axis=2), rtol=2e-3 if numpy_type == "float16" else 0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (passing(("batch", 300)), r"\(batch, steps, classes\).*got y float32 \[None, 300\]"),
        (passing(("batch", "steps", None)), "known number of classes"),
        (passing(("batch", "steps", 1)), "known number of classes"),
        (passing(("batch", "steps", 9), dtype=TensorProto.INT64, last="Identity"), "one output of floats.*int64"),
        (passing(("batch", "steps", 9), last="Sigmoid"), "'y' comes from sigmoid"),
        (passing(("batch", "steps", 9), opset=10), "opset 11 or newer; the file has 10"),
        (passing(("batch", "steps", 9), name="ctc_scores"), "'ctc_scores' has a name that the build gives"),
    ],
)
def test_what_is_no_recognizer(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(BadNetwork, match=message):
        append_ctc_tail(model)


def test_a_recognizer_of_ones_own(tmp_path: Path) -> None:
    """The answer that is declared; the characters of a file come before the network's, and its path stays at home."""
    (tmp_path / "mine.txt").write_bytes("a\r\nb\r\nc\r\n\u3000\r\n".encode())
    asked = {"kind": "text", "characters": "mine.txt", "character_scores": True}
    made = built(tmp_path, columns(softmax=False, characters="v\nw\nx\ny\nz"), asked)
    config = from_text((made.folder / "mine" / "config.pbtxt").read_text(encoding="utf-8"))
    dims = {output.name: list(output.dims) for output in config.output}
    assert dims == {"texts": [1], "scores": [1], "character_scores": [1]}
    assert (made.folder / "mine_postprocess" / "labels.txt").read_text(encoding="utf-8") == "a\nb\nc\n\u3000\n \n"
    cpu = from_text((made.folder / "mine_fused" / "configs" / "cpu.pbtxt").read_text(encoding="utf-8"))
    options = cpu.parameters["postprocess"].string_value
    assert "mine.txt" not in options
    network = onnx_graph.load(made.folder / "mine_fused" / "1" / "model.onnx")
    assert [output.name for output in network.graph.output] == ["ctc_classes", "ctc_scores"]
    assert onnx_graph.classes_of(network).count == CLASSES


@pytest.mark.parametrize(
    ("in_network", "file", "message"),
    [
        (None, None, "postprocess.characters is missing, and the network's metadata hold no 'character'"),
        ("a\nb", None, "has 2 lines, the network 6 classes; expected 5, .* or 4 and the last class is a space"),
        (None, "a\nb\nc\nd\ne\nf\n", "has 6 lines, the network 6 classes"),
        (None, "a\n\nc\nd\n", "line 2 is empty"),
        (None, "none.txt", r"postprocess\.characters: .*none\.txt: No such file"),
        (None, b"\xff\xfe", r"postprocess\.characters: .*mine\.txt is not UTF-8: byte 0"),
    ],
)
def test_characters_that_do_not_fit(tmp_path: Path, in_network: str | None, file: Any, message: str) -> None:
    options = {"kind": "text"}
    if file == "none.txt":
        options["characters"] = file
    elif file is not None:
        (tmp_path / "mine.txt").write_bytes(file if isinstance(file, bytes) else file.encode())
        options["characters"] = "mine.txt"
    with pytest.raises(BadPipeline, match=message):
        built(tmp_path, columns(characters=in_network), options)


def maps(shape: Shape, *, last: str = "Sigmoid") -> onnx.ModelProto:
    """A network that reduces its input to a map of a shape: the mean over channels."""
    return network_of(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=int(len(shape) == 4)),
            helper.make_node(last, ["mean"], ["y"]),
        ],
        {"x": ["batch", 3, "height", "width"]},
        {"y": shape},
    )


@pytest.mark.parametrize(
    "shape", [("batch", 1, "rows", "columns"), ("batch", "rows", "columns"), ("b", "one", "h", "w")]
)
def test_a_map_of_any_size(shape: Shape) -> None:
    served = onnx_graph.prepare(maps(shape), Definition.model_validate({"operations": OPERATIONS}))
    answer = answer_of(TextLines(), FREE, outputs(served), None)
    dims = {tensor.name: tensor.dims for tensor in answer}
    assert dims == {"quads": (-1, 4, 2), "scores": (-1,), "image_size": (2,), "left_out": (1,)}


@pytest.mark.parametrize(
    ("model", "postprocess", "fields", "message"),
    [
        (columns(softmax=False, width=64), TURNS, {}, r"rotation takes .*\(batch, classes\)"),
        (columns(), {"kind": "text_lines"}, {}, "'y' comes from softmax"),
        (passing(("batch", 3, 32, 64), last="Sigmoid"), {"kind": "text_lines"}, {}, r"got y \[None, 3, 32, 64\]"),
        (maps(("batch", 1, "rows", "columns")), {"kind": "text"}, {}, r"text takes one output of floats"),
        (ending_in("Identity", shape=("batch", 3, 32, 64)), TURNS, {}, "degrees has 2 angles, the network has 7 class"),
        # Their frames share batches.
        (
            columns(),
            {"kind": "raw"},
            {"preprocess": FREE.model_dump(mode="json"), "video": {}},
            "frames of streams share batches, and the definition's output size depends",
        ),
    ],
)
def test_what_does_not_suit_the_kind_is_refused(
    tmp_path: Path, model: onnx.ModelProto, postprocess: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises((BadNetwork, BadPipeline), match=message):
        built(tmp_path, model, postprocess, **fields)


def test_free_sides_stay_free() -> None:
    served = onnx_graph.prepare(columns(characters="a\nb\nc\nd\ne"), FREE, Text())
    (door,) = served.graph.input
    dims = [dim.dim_value or dim.dim_param for dim in door.type.tensor_type.shape.dim]
    assert dims == ["batch", "height", "width", 3]
    engine = OnnxRuntimeEngine(served.SerializeToString(), threads=1)
    for height, width in ((32, 50), (90, 32)):
        assert engine.run({"pixels": np.zeros((2, height, width, 3), np.uint8)})["ctc_classes"].shape == (2, width)


def test_free_sides_are_tried_with_sizes_that_the_definition_gives() -> None:
    """One network cuts planes into tiles of 128 pixels; the other takes regions of 48 rows, so any width."""
    tiles = columns()
    tiles.graph.node.insert(0, helper.make_node("SpaceToDepth", ["x"], ["tiles"], blocksize=128))
    tiles.graph.node.insert(1, helper.make_node("DepthToSpace", ["tiles"], ["again"], blocksize=128))
    tiles.graph.node[2].input[0] = "again"
    whole = Resize(mode="longer", size=640, multiple_of=128)
    onnx_graph.prepare(tiles, Definition(operations=[Decode(), whole]))
    with pytest.raises(BadNetwork, match="does not run with one image"):
        onnx_graph.prepare(tiles, Definition(operations=[Decode(), whole.model_copy(update={"multiple_of": 32})]))
    line = [Region(of="find"), Resize(mode="height", size=(48, 3200)), Pad(size=(48, 320), multiple_of=(0, 8))]
    onnx_graph.prepare(columns(), Definition(operations=line))


def test_a_definition_that_takes_small_pictures_only_is_tried_with_these() -> None:
    rows = Definition(operations=[Decode(), Pad(size=(32, 48), multiple_of=(0, 8))])
    onnx_graph.prepare(columns(), rows)
    assert small_pixels(rows).dims == (32, 64, 3)
    never = Definition(operations=[Decode(), Resize(mode="shorter", size=64), Pad(size=(32, 32), multiple_of=(0, 8))])
    with pytest.raises(BadPipeline, match=r"refuses pictures of every size that was tried: 64x64, .* see its pad"):
        small_pixels(never)


def test_free_sides_that_are_not() -> None:
    with pytest.raises(BadNetwork, match=r"\[batch, 3, any, any\] depends on the image, .* \[batch, 3, any, 64\]; end"):
        onnx_graph.prepare(columns(width=64), FREE)
    fixed = columns()
    fixed.graph.node.insert(0, helper.make_node("Reshape", ["x", "size"], ["again"]))
    fixed.graph.initializer.append(numpy_helper.from_array(np.array([-1, 3, 320, 320], np.int64), "size"))
    fixed.graph.node[1].input[0] = "again"
    with pytest.raises(BadNetwork, match="does not run with one image"):
        onnx_graph.prepare(fixed, FREE)
    for options in (Detection(family="yolo"), Matte()):
        with pytest.raises(BadNetwork, match=f"{options.kind} takes a definition whose output has one size"):
            onnx_graph.prepare(columns(), FREE, options)
