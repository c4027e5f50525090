"""Embeddings, segmentations and mattes at the build: refusals by name, networks that are cut, the graph's own tail."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from kind_networks import built_of, write_of
from networks import mean_color, network_of
from onnx import TensorProto, helper
from PIL import Image

from onestream.postprocess.kinds.embedding import Embedding
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.kinds.segmentation import Segmentation
from onestream.postprocess.matte.background import Blur, Color, Picture, read_picture
from onestream.postprocess.matte.composer import Composer, alpha
from onestream.postprocess.matte.stretch import mixed
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import Definition
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.serving.building import pipeline_repository
from onestream.serving.building.build import build
from onestream.serving.building.network_source import NetworkSource
from onestream.serving.building.repository import answer_of
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.served import outputs
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.graph.onnx_postprocess import with_postprocess
from onestream.serving.pipeline import BACKGROUND_FILE, Pipeline
from onestream.serving.server.fit import fit_instances

OPERATIONS = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [32, 32]}, {"op": "output"}]
DEFINITION = Definition.model_validate({"operations": OPERATIONS})
# Sums in another order than NumPy's, of values up to 1.
TOLERANCE = 1e-6
SEGMENTATION = Segmentation()
TWO_OF_FIVE = Segmentation(output="probabilities", classes=(2, 5))
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
    """What comes after is left out, weights too, and the stamp stays."""
    model = mean_color()
    model.metadata_props.add(key="author", value="somebody")
    served = onnx_graph.prepare(model, DEFINITION, outputs=["flat"])
    assert [(one.name, one.dims) for one in outputs(served)] == [("flat", (3,))]
    assert "weights" not in {tensor.name for tensor in served.graph.initializer}
    stamp = {entry.key: entry.value for entry in served.metadata_props}
    assert (stamp["author"], len(stamp) > 1) == ("somebody", True)
    with pytest.raises(BadNetwork, match=r"network_outputs names 'feature', which no node makes; the last are .*flat"):
        onnx_graph.prepare(model, DEFINITION, outputs=["feature"])
    fields = {"name": "mine", "preprocess": {"operations": OPERATIONS}, "network_outputs": []}
    with pytest.raises(BadPipeline, match="network_outputs"):
        Pipeline.from_fields(Path("mine.yaml"), fields)


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
        answer_of(SEGMENTATION, DEFINITION, outputs(onnx_graph.prepare(model, DEFINITION)), None)
    served = outputs(onnx_graph.prepare(model, DEFINITION, outputs=["y"]))
    answer = {one.name: one.dims for one in answer_of(SEGMENTATION, DEFINITION, served, None)}
    assert answer == {"masks": (1,), "class_ids": (5,), "labels": (5,), "image_size": (2,)}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (network(("batch", 5)), SEGMENTATION, r"height, width\), or \(batch, height, width\).*got y \[None, 5\]"),
        (network(("batch", 5, 9, 8)), SEGMENTATION, "divide those of the network's input, 32 and 32; got y of 9"),
        (network(("batch", 5, 64, 64)), SEGMENTATION, "got y of 64 and 64"),
        (network(("batch", 256, 8, 8)), SEGMENTATION, "at most 255 classes; the network has 256"),
        (network(("batch", 9, 8, 8)), Segmentation(output="probabilities"), "at most 8 classes, and the network has 9"),
        (network(("batch", 5, 8, 8)), TWO_OF_FIVE, "names 5; the network has the classes 0 to 4"),
        (network(("batch", 8, 8), dtype=TensorProto.INT64), SEGMENTATION, "one output of floats.*int64"),
        (network(("batch", 5, 8, 8)), Embedding(), r"\(batch, values\).* network_outputs: \[NAME\]"),
        (network(("batch", 4, 1)), Embedding(), r"\(batch, values\).* network_outputs: \[NAME\]"),
        (network(("batch", 5, 8, 8)), SEGMENTATION, "has 4 names, expected 5"),
        (network(("batch", 8, 8)), SEGMENTATION, "has 4 names, expected 2"),
        (network(("batch", 8, 8)), Segmentation(output="probabilities"), "has 4 names, expected 1"),
    ],
)
def test_a_network_that_does_not_suit(model: onnx.ModelProto, options: Segmentation | Embedding, message: str) -> None:
    labels = "a\nb\nc\nd\n" if "names, expected" in message else None
    with pytest.raises((BadNetwork, BadPipeline), match=message):
        answer_of(options, DEFINITION, outputs(onnx_graph.prepare(model, DEFINITION, options)), labels)


def test_sizes_that_an_exporter_left_open() -> None:
    """They are taken where they follow from the input's, and asked for where nobody can tell them."""
    models = [network(("batch", "classes", "rows", "columns"), reshape=by) for by in ("shape", "hidden")]
    told, hidden = (outputs(onnx_graph.prepare(model, DEFINITION, SEGMENTATION)) for model in models)
    assert [one.dims for one in told] == [(8, 8, 8)]
    with pytest.raises(BadNetwork, match="of a known size"):
        answer_of(SEGMENTATION, DEFINITION, hidden, None)


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
    assert SEGMENTATION.suited_to(served).activation == activation
    if operator == "Sigmoid":
        with pytest.raises(BadPipeline, match="activation is sigmoid, and the network's output 'y' comes from sigmoid"):
            Segmentation(activation="sigmoid").suited_to(served)
    if shape == ("batch", 8, 8):
        with pytest.raises((BadNetwork, BadPipeline), match="1 everywhere"):
            Segmentation(activation="softmax").suited_to(outputs(onnx_graph.prepare(network(shape), DEFINITION)))


def test_each_core_makes_masks(tmp_path: Path) -> None:
    built = built_of("segmentation", tmp_path)
    for cores in (2, 6):
        view = tmp_path / f"{cores}"
        fitted = fit_instances(built.folder, view, cores=cores) / "mine_postprocess" / "configs" / "cpu.pbtxt"
        (group,) = from_text(fitted.read_text(encoding="utf-8")).instance_group
        assert group.count == cores


# ---- mattes

ROOT = Path(__file__).parents[3]
PIPELINE_FILE = ROOT / "pipelines" / "matte.yaml"
PERSON = NetworkOutput("person", "float32", (256, 256))


def pipeline_with(folder: Path, **postprocess: Any) -> Path:
    fields = yaml.safe_load(PIPELINE_FILE.read_text())
    fields["postprocess"] |= postprocess
    path = folder / "matte.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def test_the_matte_leaves_at_the_size_of_the_canvas() -> None:
    planned = pipeline_repository.plan(Pipeline.from_file(PIPELINE_FILE), [PERSON], labels=None)
    files = planned.files(source="pipelines/matte.yaml")
    for model in ("matte", "matte_fused", "matte_postprocess"):
        (output,) = from_text(files[f"{model}/config.pbtxt"].decode()).output
        assert (output.name, list(output.dims)) == ("matte", [256, 256])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softness": 0}, "softness: Input should be greater than 0"),
        ({"background": {"kind": "color", "rgb": [0, 0, 256]}}, r"rgb\.2: Input should be less than or equal to 255"),
        ({"background": {"kind": "blur", "radius": 3}}, "radius: Input should be greater than or equal to 12"),
        ({"background": {"kind": "snow"}}, "allowed: color, blur, picture"),
        ({"background": {"kind": "picture"}}, "path: Field required"),
    ],
)
def test_options_are_checked_by_name(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadPipeline, match=message):
        Pipeline.from_file(pipeline_with(tmp_path, **options))


@pytest.mark.parametrize(
    "outputs",
    [
        [PERSON, PERSON],
        [NetworkOutput("person", "float32", (256, 256, 1))],
        [NetworkOutput("person", "uint8", (256, 256))],
        [NetworkOutput("person", "float32", (128, 128))],
    ],
)
def test_a_network_that_gives_no_matte_is_refused(outputs: list[NetworkOutput]) -> None:
    with pytest.raises(BadNetwork, match=r"matte takes one output, float32 \[None, 256, 256\].*got person"):
        pipeline_repository.plan(Pipeline.from_file(PIPELINE_FILE), outputs, labels=None)


def test_the_graph_s_own_matte_is_that_of_the_postprocessing() -> None:
    """All of float32's steps between 0 and 1 cannot be run; 300,000 of them can, and the ties at half levels."""
    person = np.random.default_rng(0).random((1, 600, 500), np.float32)
    person[0, 0, :256] = np.arange(256, dtype=np.float32) / np.float32(255)
    person[0, 1, :255] = (np.arange(255, dtype=np.float32) + np.float32(0.5)) / np.float32(255)
    for name in ("person", "matte"):
        shape = ["batch", 600, 500]
        model = network_of([helper.make_node("Identity", ["x"], [name])], {"x": shape}, {name: shape})
        for softness in (1.0, 0.5, 0.03):
            tailed = with_postprocess(model, Matte(softness=softness))
            onnx.checker.check_model(tailed, full_check=True)
            outputs = OnnxRuntimeEngine(tailed.SerializeToString(), threads=1).run_together({"x": person})
            assert list(outputs) == ["matte"]
            np.testing.assert_array_equal(outputs["matte"], alpha(person, softness=softness))


def test_a_picture_is_turned_as_it_says() -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter to the right when shown
    image.save(buffer, "PNG", exif=exif)
    shown = read_picture(buffer.getvalue())
    assert shown.shape == (16, 8, 3)
    assert shown[:8].min() == 255
    with pytest.raises(ValueError, match="not an image that can be read"):
        read_picture(b"text")


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"text", "not an image that can be read")])
def test_a_background_that_cannot_be_shown_ends_the_build(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "beach.png").write_bytes(content)
    path = pipeline_with(tmp_path, background={"kind": "picture", "path": "beach.png"})
    with pytest.raises(BadPipeline, match=rf"postprocess\.background\.path: .*beach\.png: .*{message}"):
        build(path, folder=tmp_path / "repository")


@pytest.mark.parametrize("background", ["color", "blur", "picture"])
def test_the_options_become_the_background_that_they_name(tmp_path: Path, background: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / BACKGROUND_FILE, "PNG")
    options, expected = {
        "color": ({"kind": "color", "rgb": [9, 8, 7]}, Color((9, 8, 7))),
        "blur": ({"kind": "blur", "radius": 12}, Blur(12)),
        "picture": ({"kind": "picture", "path": "beach.png"}, Picture(pixels)),
    }[background]
    sizes, chosen = ((40, 60), (20, 30), (20, 30)), np.random.default_rng(2)
    y, u, v = (chosen.integers(0, 256, size, dtype=np.uint8) for size in sizes)
    frame = Planes(y, u, v, (40, 60), (1, 1), 8, 1, False)
    composer = Composer(Matte.model_validate({"background": options}).behind((tmp_path / BACKGROUND_FILE).read_bytes))
    out = composer.compose(frame, np.zeros((4, 6), np.uint8))
    for plane, layer in zip((out.y, out.u, out.v), expected.layers(frame, ColorRule()), strict=True):
        np.testing.assert_array_equal(plane, mixed(layer.rows, layer.steps, axis=0))
