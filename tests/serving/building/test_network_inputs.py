"""Inputs of a network beside the image: constants, the picture's size, what a request carries, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import prompted
import pytest
import yaml
from builds import build
from kind_networks import answer_in_process
from networks import network_of
from onnx import TensorProto, helper
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from onestream.preprocess import Definition
from onestream.serving.building.build import Built
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.served import other_inputs
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_graph import prepare
from onestream.serving.models.in_process import InProcess
from onestream.serving.proxy.settings import public_models

OPERATIONS = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [8, 8]}, {"op": "output"}]
DEFINITION = Definition.model_validate({"operations": OPERATIONS})


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
    with_batch = prepare(scaled_mean(), DEFINITION, inputs=described["network_inputs"]).SerializeToString()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    expected = pixels.mean(axis=(1, 2)) * [1, 2, 3] + 0.5
    for network in (built.folder / "mine_model" / "1" / "model.onnx", with_batch):
        engine = OnnxRuntimeEngine(network, threads=1)
        np.testing.assert_allclose(engine.run({"pixels": pixels})["y"], expected, rtol=1e-5)
    assert InProcess(built.folder / "mine_fused").kind == "raw"


def build_prompted(folder: Path, **fields: Any) -> Built:
    network = prompted.write(folder, **fields)
    return build(folder / "prompted.yaml", folder=folder / "repository", onnx_file=network)


@pytest.mark.parametrize("batch", ["batch", 1])
def test_every_source_reaches_its_input(batch: int | str) -> None:
    """Whatever the order in the file; of a batch each image gets its own."""
    served = prepare(prompted.prompted(batch), DEFINITION, inputs=prompted.NETWORK_INPUTS)
    assert {(one.name, one.dtype, one.dims) for one in other_inputs(served)} == {
        ("image_size", "int32", (2,)),
        ("points", "float32", (-1, 2)),
        ("tokens", "int64", (3,)),
    }
    given, rows = prompted.two_images()
    engine = OnnxRuntimeEngine(served.SerializeToString(), threads=1)
    np.testing.assert_allclose(engine.run(given)["y"], rows, rtol=1e-5)
    np.testing.assert_allclose(engine.run_together(given)["y"], rows, rtol=1e-5)


def test_the_models_declare_what_a_request_carries(tmp_path: Path) -> None:
    """The picture's size comes from the preprocessing, and is no input of either form."""
    folder = build_prompted(tmp_path).folder

    def inputs(model: str) -> dict[str, list[int]]:
        configs = folder / model / "configs" / "cpu.pbtxt"
        path = configs if configs.exists() else folder / model / "config.pbtxt"
        return {one.name: list(one.dims) for one in from_text(path.read_text()).input}

    of_request = {"points": [-1, 2], "tokens": [3]}
    for form in ("prompted", "prompted_fused"):
        assert inputs(form) == {"image": [-1], **of_request}
    assert inputs("prompted_preprocess") == {"image": [-1]}
    assert inputs("prompted_model") == {"pixels": [8, 8, 3], "image_size": [2], **of_request}
    with pytest.raises(BadPipeline, match="prompted_fused takes points, tokens with each picture, by network_inputs"):
        InProcess(folder / "prompted_fused")


def test_the_limit_of_values_is_the_file_s_and_for_inputs_of_varying_size(tmp_path: Path) -> None:
    """The proxy lets such requests through, and no larger ones."""
    for count, expected in (("count", {"7"}), (4, {""})):
        folder = tmp_path / str(count)
        folder.mkdir()
        repository = build_prompted(folder, count=count, limits={"max_input_values": 7, "max_body_bytes": 1000}).folder
        configs = [
            from_text((repository / name / "config.pbtxt").read_text()) for name in ("prompted", "prompted_fused")
        ]
        assert {config.parameters["max_input_values"].string_value for config in configs} == expected
        most = (7 if count == "count" else 8) * 4 + 3 * 8
        assert {model.max_body_bytes for model in public_models(repository)} == {1000 + most}


def test_the_models_are_warmed_up_with_ones(tmp_path: Path) -> None:
    """A network may divide by what it is given."""
    folder = build_prompted(tmp_path).folder
    dtypes = {"image_size": np.int32, "points": np.float32, "tokens": np.int64}
    for model, names in (("prompted_model", dtypes.keys()), ("prompted_fused", ("points", "tokens"))):
        (warmup,) = from_text((folder / model / "configs" / "cpu.pbtxt").read_text()).model_warmup
        for name in names:
            value = warmup.inputs[name]
            found = np.fromfile(folder / model / "warmup" / value.input_data_file, dtypes[name])
            np.testing.assert_array_equal(found.reshape(value.dims), 1)


@pytest.mark.parametrize(("most", "points"), [(4096, 4), (7, 3), (1, 1)])
def test_the_models_are_warmed_up_with_shapes_that_the_build_ran(tmp_path: Path, most: int, points: int) -> None:
    """A network may need more than one value; no more than the limit are taken."""
    folder = build_prompted(tmp_path, limits={"max_input_values": most}).folder
    for model in ("prompted_model", "prompted_fused"):
        (warmup,) = from_text((folder / model / "configs" / "cpu.pbtxt").read_text()).model_warmup
        shapes = {name: list(value.dims) for name, value in warmup.inputs.items()}
        assert (shapes["points"], shapes["tokens"]) == ([points, 2], [3])


def test_a_process_without_triton_gives_sizes(tmp_path: Path) -> None:
    network = prompted.write_sized(tmp_path)
    built = build(tmp_path / "sized.yaml", folder=tmp_path / "repository", onnx_file=network)
    model = InProcess(built.folder / "sized_fused")
    assert answer_in_process(model, np.zeros((30, 40, 3), np.uint8))["y"].tolist() == [[30, 40, 7]]


@pytest.mark.parametrize(("count", "backends"), [(2, ["python", "tensorrt"]), ("count", ["python", "python"])])
def test_a_gpu_runs_a_network_whose_inputs_have_one_size(tmp_path: Path, count: int | str, backends: list[str]) -> None:
    """Else the machine with a GPU runs it on its CPU, whose configuration it is."""
    folder = build_prompted(tmp_path, count=count).folder
    gpu = [from_text((folder / f"prompted_{role}" / "config.pbtxt").read_text()) for role in ("fused", "model")]
    assert [config.backend for config in gpu] == backends
    on_gpu = count == 2
    for config in gpu:
        assert (config.instance_group[0].kind == ModelInstanceGroup.KIND_GPU) == on_gpu
    if on_gpu:
        graphs = gpu[1].optimization.cuda.graph_spec
        assert {name: list(one.dim) for name, one in graphs[0].input.items()} == {
            "pixels": [8, 8, 3],
            "image_size": [2],
            "points": [2, 2],
            "tokens": [3],
        }


def test_an_answer_of_another_size_for_each_picture_is_computed_on_the_cpu_of_a_gpu_s_machine(tmp_path: Path) -> None:
    """Engines on a GPU refuse to load such a network."""
    network = prompted.write_painted(tmp_path)
    built = build(tmp_path / "painted.yaml", folder=tmp_path / "repository", onnx_file=network)
    for role in ("fused", "model", "preprocess", "video"):
        config = from_text((built.folder / f"painted_{role}" / "config.pbtxt").read_text())
        assert (config.backend, config.instance_group[0].kind) == ("python", ModelInstanceGroup.KIND_CPU)
    text = "one image at a time, on the CPU of a machine with a GPU too: output 'y' has another size for each picture"
    assert built.notes == [text]


@pytest.mark.parametrize(
    ("values", "error", "named"),
    [
        ({"size": 1}, BadPipeline, "names 'size'; the inputs are image, offset, sizes"),
        ({"sizes": [1, 2], "offset": 0}, BadNetwork, r"has \[2\] numbers for 'sizes', which takes \['any', 3\]"),
        ({"offset": [1, 2], "sizes": [1, 2, 3]}, BadNetwork, r"has \[2\] numbers for 'offset', which takes \[\]"),
        ({}, BadNetwork, "expected one input, the image; got 3: image, offset, sizes. .* takes: pixels, request, "),
        ({"image": "pixels", "offset": 1}, BadNetwork, "got 2: image, sizes"),
        ({"image": "pixels", "offset": 1, "sizes": "pixels"}, BadNetwork, "got 2: image, sizes"),
        ({"offset": "request", "sizes": "request"}, BadNetwork, r"'offset' takes \[\]; .* has the batch first"),
        ({"offset": 1, "sizes": "image_size"}, BadNetwork, r"'sizes' takes \['any', 3\]; a size is \['any', 2\]"),
        ({"offset": 1, "sizes": "pixels", "image": "request"}, BadNetwork, "'image' cannot come with a request"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        prepare(scaled_mean(), DEFINITION, inputs=values)


def test_text_cannot_come_with_a_request() -> None:
    model = scaled_mean()
    model.graph.input.append(helper.make_tensor_value_info("words", TensorProto.STRING, ["batch", 1]))
    with pytest.raises(BadNetwork, match="'words' takes string, which cannot come with a request; allowed: uint8, "):
        prepare(model, DEFINITION, inputs={"offset": 0, "sizes": "request", "words": "request"})


def test_a_value_of_a_request_is_not_called_as_pixels() -> None:
    """It would be served as an encoded picture."""
    model = scaled_mean()
    model.graph.input.append(helper.make_tensor_value_info("pixels/mask", TensorProto.FLOAT, ["batch", 4]))
    with pytest.raises(BadNetwork, match=r"'pixels/mask' cannot come .* but image, pixels, pixels/… and image_size"):
        prepare(model, DEFINITION, inputs={"offset": 0, "sizes": [1, 2, 3], "pixels/mask": "request"})


@pytest.mark.parametrize(("batch", "stated"), [("batch", "any"), (1, "1")])
def test_an_input_without_a_batch_does_not_come_with_a_request(batch: int | str, stated: str) -> None:
    """A table of seven rows would be served as a batch of single rows."""
    model = scaled_mean(batch)
    model.graph.input.append(helper.make_tensor_value_info("table", TensorProto.FLOAT, [7, 3]))
    with pytest.raises(
        BadNetwork, match=f"first dimension of the input 'table' is 7; expected the batch.* {stated} of"
    ):
        prepare(model, DEFINITION, inputs={"offset": 0, "sizes": [1, 2, 3], "table": "request"})


def test_a_request_gives_more_than_one_dimension() -> None:
    """Triton's configuration holds no input of the batch alone."""
    model = scaled_mean()
    model.graph.input.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]))
    with pytest.raises(BadNetwork, match=r"'label' takes \['any'\]; .* least one dimension more, such as \['any', 1\]"):
        prepare(model, DEFINITION, inputs={"offset": 0, "sizes": "request", "label": "request"})


@pytest.mark.parametrize(
    ("dtype", "number", "named"),
    [
        (TensorProto.INT64, 0.5, "int64, which does not hold 0.5"),
        (TensorProto.UINT8, 300, "uint8, which does not hold 300"),
        (TensorProto.UINT8, -1, "uint8, which does not hold -1"),
        (TensorProto.BOOL, 0.5, "bool, which does not hold 0.5"),
        (TensorProto.FLOAT16, 1e30, r"float16, which does not hold 1e\+30"),
        (TensorProto.STRING, 1, "text; network_inputs gives numbers"),
    ],
)
def test_a_constant_never_becomes_another(dtype: int, number: float, named: str) -> None:
    model = scaled_mean()
    model.graph.input.append(helper.make_tensor_value_info("more", dtype, ["batch", 1]))
    with pytest.raises(BadNetwork, match=f"'more' takes {named}"):
        prepare(model, DEFINITION, inputs={"offset": 0, "sizes": [1, 2, 3], "more": [number]})


def test_a_scale_is_that_of_an_exact_resize() -> None:
    letterboxed = Definition.model_validate({"operations": [{"op": "decode"}, {"op": "letterbox", "size": [8, 8]}]})
    with pytest.raises(BadPipeline, match="scale_factor: image_scale is for a definition that resizes every picture"):
        prepare(prompted.prompted(), letterboxed, inputs=prompted.NETWORK_INPUTS)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"video": {}}, "video: frames come without points; streams take"),
        ({"serving": {"precision": "int8"}}, "serving.precision int8 takes a network of the pixels and constants"),
        ({"network_inputs": {"picture": "pixel"}}, r"network_inputs\.picture.*'pixels', 'request', 'image_size'"),
    ],
)
def test_a_pipeline_that_cannot_give_its_inputs_is_refused(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadPipeline, match=named):
        build_prompted(tmp_path, **fields)


def test_the_form_without_python_takes_pixels_alone(tmp_path: Path) -> None:
    network = prompted.write(tmp_path)
    with pytest.raises(BadPipeline, match=r"dali-backend takes a network of the .* takes image_size, points, tokens"):
        build(tmp_path / "prompted.yaml", folder=tmp_path / "r", onnx_file=network, form="dali-backend")


@pytest.mark.parametrize(("kind", "taken"), [("embedding", "embedding"), ("raw", "network/y")])
def test_an_input_may_not_be_called_as_another_tensor(tmp_path: Path, kind: str, taken: str) -> None:
    network = prompted.write(tmp_path, postprocess={"kind": kind})
    model = prompted.prompted()
    for value in (*model.graph.input, *model.graph.node):
        if isinstance(value, onnx.NodeProto):
            value.input[:] = [taken if name == "points" else name for name in value.input]
        elif value.name == "points":
            value.name = taken
    onnx.save(model, network)
    inputs = {(taken if name == "points" else name): one for name, one in prompted.NETWORK_INPUTS.items()}
    fields = yaml.safe_load((tmp_path / "prompted.yaml").read_text()) | {"network_inputs": inputs}
    (tmp_path / "prompted.yaml").write_text(yaml.safe_dump(fields))
    with pytest.raises(BadPipeline, match=f"{taken}: with postprocess {kind} another tensor of the pipeline has this"):
        build(tmp_path / "prompted.yaml", folder=tmp_path / "repository", onnx_file=network)


def test_a_detector_takes_no_size_of_the_picture(tmp_path: Path) -> None:
    """Its boxes would be mapped to the picture twice."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colors"]),
        helper.make_node("Concat", ["colors", "sizes"], ["five"], axis=1),
        helper.make_node("Concat", ["five", "colors"], ["all"], axis=1),
        helper.make_node("Mul", ["all", "nothing"], ["row"]),
        helper.make_node("Unsqueeze", ["row", "last"], ["column"]),
        helper.make_node("Tile", ["column", "times"], ["y"]),
    ]
    shapes = {"images": ["batch", 3, 8, 8], "sizes": ["batch", 2]}
    model = network_of(
        nodes,
        shapes,
        {"y": ["batch", 8, 21]},
        {"nothing": np.zeros(1, np.float32), "last": np.array([2]), "times": np.array([1, 1, 21])},
    )
    onnx.save(model, tmp_path / "mine.onnx")
    described = {
        "preprocess": {"operations": OPERATIONS},
        "postprocess": {"kind": "detection", "family": "yolo", "labels": list("abcd")},
        "network_inputs": {"sizes": "image_size_wh"},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(described))
    with pytest.raises(BadPipeline, match="sizes: image_size_wh: postprocess detection maps what"):
        build(tmp_path / "mine.yaml", folder=tmp_path / "repository", onnx_file=tmp_path / "mine.onnx")
