"""Embeddings and segmentations at the build: refusals by name, networks that are cut, and the graph's own tail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builds import build
from kind_networks import built_of, write_of
from networks import mean_color, network_of
from onnx import TensorProto, helper

from onestream.postprocess.kinds.embedding import Embedding
from onestream.postprocess.kinds.segmentation import Segmentation
from onestream.preprocess import Definition
from onestream.serving.building.build import Built
from onestream.serving.building.network_source import NetworkSource
from onestream.serving.building.repository import answer_of
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.served import outputs
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.graph.onnx_postprocess import with_postprocess
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.fit import fit_instances

OPERATIONS = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [32, 32]}, {"op": "output"}]
DEFINITION = Definition.model_validate({"operations": OPERATIONS})
# Sums in another order than NumPy's, of values up to 1.
TOLERANCE = 1e-6
Shape = tuple[int | str, ...]


def network(
    shape: Shape, *, dtype: int = TensorProto.FLOAT, operator: str = "Identity", reshape: str = "shape"
) -> onnx.ModelProto:
    """A network whose one output has a shape, 8 where a name is. ``reshape``: *hidden* cannot be told beforehand."""
    sides = [side if isinstance(side, int) else 8 for side in shape[1:]]
    size = int(np.prod(sides))
    weights = np.random.default_rng(3).normal(size=(3, size)).astype(np.float32)
    return network_of(
        [
            helper.make_node("GlobalAveragePool", ["input"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["product"]),
            helper.make_node("Abs", ["shape"], ["hidden"]),
            helper.make_node("Reshape", ["product", reshape], ["shaped"]),
            helper.make_node("Cast", ["shaped"], ["typed"], to=dtype),
            helper.make_node(operator, ["typed"], ["y"]),
        ],
        {"input": ["batch", 3, 32, 32]},
        {"y": shape},
        {"weights": weights, "shape": np.array([0, *sides], np.int64)},
        gives=dtype,
    )


def build_mine(folder: Path, model: onnx.ModelProto, *, form: Any = "python", **fields: Any) -> Built:
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "mine.onnx")
    (folder / "mine.yaml").write_text(yaml.safe_dump({"preprocess": {"operations": OPERATIONS}, **fields}))
    return build(folder / "mine.yaml", folder=folder / "repository", onnx_file=folder / "mine.onnx", form=form)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize(("numpy_type", "dtype"), [("float16", TensorProto.FLOAT16), ("float32", TensorProto.FLOAT)])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_tail_of_any_opset_and_type(numpy_type: str, dtype: int, opset: int, normalize: bool) -> None:
    """A network may name its output as we do; zeros stay zeros; squares that float16 cannot hold are summed."""
    model = network_of(
        [helper.make_node("Identity", ["x"], ["embedding"])],
        {"x": ["batch", 300]},
        {"embedding": ["batch", 300]},
        dtype=dtype,
        opset=opset,
    )
    features = np.random.default_rng(0).normal(scale=200, size=(3, 300)).astype(numpy_type)
    features[1] = 0
    extended = with_postprocess(model, Embedding(normalize=normalize))
    found = OnnxRuntimeEngine(extended.SerializeToString(), threads=1).run_together({"x": features})["embedding"]
    expected = features.astype(np.float64)
    if normalize:
        expected /= np.maximum(np.linalg.norm(expected, axis=1), 1e-12)[:, None]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_a_network_ends_where_the_pipeline_says() -> None:
    """What comes after is left out, weights too."""
    served = onnx_graph.prepare(network(("batch", 12, 1, 1)), DEFINITION, outputs=["flat"])
    assert [(one.name, one.dims) for one in outputs(served)] == [("flat", (3,))]
    assert "weights" not in {tensor.name for tensor in served.graph.initializer}


def test_a_network_that_is_made_of_other_things_is_built_anew(tmp_path: Path) -> None:
    """A build keeps what has the key of what it would make."""
    file, own = tmp_path / "mine.yaml", write_of("text", tmp_path)
    described = yaml.safe_load(file.read_text())

    def key(**changes: Any) -> str:
        file.write_text(yaml.safe_dump(described | changes))
        pipeline = Pipeline.from_file(file)
        return NetworkSource.of(pipeline, own, files=[tmp_path / "model.onnx"], anchors=None).key(pipeline)

    changes: list[dict[str, Any]] = [
        {},
        {"postprocess": {"kind": "raw"}},
        {"postprocess": {"kind": "raw"}, "network_outputs": ["flat"]},
        {"postprocess": {"kind": "raw"}, "network_inputs": {"size": 1}},
        {"preprocess": {"operations": [{"op": "decode", "color": "bgr"}, *OPERATIONS[1:]]}},
    ]
    assert len({key(**one) for one in changes}) == len(changes)
    assert key() == key()


def test_of_several_outputs_one_is_taken() -> None:
    model = network(("batch", 5, 8, 8))
    model.graph.output.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["batch", 3]))
    with pytest.raises(BadNetwork, match=r"one output of floats .* got y \[None, 5, 8, 8\], flat"):
        answer_of(Segmentation(), DEFINITION, outputs(onnx_graph.prepare(model, DEFINITION)), None)
    served = outputs(onnx_graph.prepare(model, DEFINITION, outputs=["y"]))
    answer = {one.name: one.dims for one in answer_of(Segmentation(), DEFINITION, served, None)}
    assert answer == {"masks": (1,), "class_ids": (5,), "labels": (5,), "image_size": (2,)}


def test_a_cut_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadNetwork, match=r"network_outputs names 'feature', which no node makes; the last are .*flat"):
        build_mine(tmp_path, mean_color(), network_outputs=["feature"])
    with pytest.raises(BadPipeline, match="network_outputs"):
        build_mine(tmp_path, mean_color(), network_outputs=[])


def test_the_stamp_stays_when_a_network_is_cut() -> None:
    model = mean_color()
    model.metadata_props.add(key="author", value="somebody")
    served = onnx_graph.prepare(model, DEFINITION, outputs=["flat"])
    found = {entry.key: entry.value for entry in served.metadata_props}
    assert found["author"] == "somebody"
    assert len(found) > 1


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            network(("batch", 5)),
            Segmentation(),
            r"\(batch, classes, height, width\), or \(batch, height, width\).*got y \[None, 5\]",
        ),
        (network(("batch", 5, 9, 8)), Segmentation(), "divide those of the network's input, 32 and 32; got y of 9"),
        (network(("batch", 5, 64, 64)), Segmentation(), "got y of 64 and 64"),
        (network(("batch", 256, 8, 8)), Segmentation(), "at most 255 classes; the network has 256"),
        (
            network(("batch", 9, 8, 8)),
            Segmentation(output="probabilities"),
            "at most 8 classes, and the network has 9",
        ),
        (
            network(("batch", 5, 8, 8)),
            Segmentation(output="probabilities", classes=(2, 5)),
            "names 5; the network has the classes 0 to 4",
        ),
        (network(("batch", 8, 8), dtype=TensorProto.INT64), Segmentation(), "one output of floats.*int64"),
        (network(("batch", 5, 8, 8)), Embedding(), r"\(batch, values\).* network_outputs: \[NAME\]"),
        (network(("batch", 4, 1)), Embedding(), r"\(batch, values\).* network_outputs: \[NAME\]"),
        (network(("batch", 5, 8, 8)), Segmentation(), "has 4 names, expected 5"),
        (network(("batch", 8, 8)), Segmentation(), "has 4 names, expected 2"),
        (network(("batch", 8, 8)), Segmentation(output="probabilities"), "has 4 names, expected 1"),
    ],
)
def test_a_network_that_does_not_suit_the_kind(
    model: onnx.ModelProto, options: Segmentation | Embedding, message: str
) -> None:
    labels = "a\nb\nc\nd\n" if "names, expected" in message else None
    with pytest.raises((BadNetwork, BadPipeline), match=message):
        answer_of(options, DEFINITION, outputs(onnx_graph.prepare(model, DEFINITION, options)), labels)


def test_sizes_that_an_exporter_left_open() -> None:
    """They are taken where they follow from the input's, and asked for where nobody can tell them."""
    for reshape, dims in (("shape", (8, 8, 8)), ("hidden", None)):
        model = network(("batch", "classes", "rows", "columns"), reshape=reshape)
        served = outputs(onnx_graph.prepare(model, DEFINITION, Segmentation()))
        if dims is not None:
            assert [one.dims for one in served] == [dims]
            continue
        with pytest.raises(BadNetwork, match="of a known size"):
            answer_of(Segmentation(), DEFINITION, served, None)


@pytest.mark.parametrize(
    ("shape", "operator", "activation"),
    [
        (("batch", 5, 8, 8), "Identity", "softmax"),
        (("batch", 5, 8, 8), "Sigmoid", "none"),
        (("batch", 1, 8, 8), "Identity", "sigmoid"),
        (("batch", 8, 8), "Sigmoid", "none"),
    ],
)
def test_the_activation_suits_the_network(shape: Shape, operator: str, activation: str) -> None:
    served = outputs(onnx_graph.prepare(network(shape, operator=operator), DEFINITION))
    assert Segmentation().suited_to(served).activation == activation
    if operator == "Sigmoid":
        with pytest.raises(BadPipeline, match="activation is sigmoid, and the network's output 'y' comes from sigmoid"):
            Segmentation(activation="sigmoid").suited_to(served)


def test_one_class_has_no_softmax() -> None:
    served = outputs(onnx_graph.prepare(network(("batch", 8, 8)), DEFINITION))
    with pytest.raises((BadNetwork, BadPipeline), match="1 everywhere"):
        Segmentation(activation="softmax").suited_to(served)


def test_each_core_makes_masks(tmp_path: Path) -> None:
    built = built_of("segmentation", tmp_path)
    for cores in (2, 6):
        view = tmp_path / f"{cores}"
        fitted = fit_instances(built.folder, view, cores=cores) / "mine_postprocess" / "configs" / "cpu.pbtxt"
        (group,) = from_text(fitted.read_text(encoding="utf-8")).instance_group
        assert group.count == cores


def test_the_unmodified_container_has_no_masks(tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match="postprocess segmentation maps results back to each picture"):
        build_mine(tmp_path, network(("batch", 8, 8)), postprocess={"kind": "segmentation"}, form="dali-backend")
