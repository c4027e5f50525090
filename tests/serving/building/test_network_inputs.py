"""Inputs of a network beside the image: constants, its size, what a request carries, a second picture; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import prompted
import pytest
import siamese
from builds import build
from kind_networks import answer_in_process
from networks import network_of
from onnx import TensorProto, helper
from planned_models import config, written
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import Definition
from onestream.serving.building.dali_backend.repository import Form
from onestream.serving.building.pipeline_repository import plan
from onestream.serving.engine import EngineTensor, OnnxRuntimeEngine
from onestream.serving.engine.served import cast_first, other_inputs
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_graph import prepare
from onestream.serving.models.in_process import InProcess
from onestream.serving.pipeline import Pipeline
from onestream.serving.proxy.settings import public_models
from onestream.wire.tensor_names import CANDIDATES

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


@pytest.mark.parametrize("batch", [1, "batch"])
def test_a_pipeline_fixes_the_other_inputs_of_its_network(batch: int | str) -> None:
    """Also one of a single image, which is given batches."""
    served = prepare(scaled_mean(batch), DEFINITION, inputs={"sizes": [1, 2, 3], "offset": 0.5})
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    found = OnnxRuntimeEngine(served.SerializeToString(), threads=1).run({"pixels": pixels})["y"]
    np.testing.assert_allclose(found, pixels.mean(axis=(1, 2)) * [1, 2, 3] + 0.5, rtol=1e-5)


def planned(folder: Path, count: int | str = "count", **fields: Any) -> Path:
    """The folder of the models of *prompted*."""
    prompted.write(folder, **fields)
    return written(folder / "prompted.yaml", prompted.prompted(count=count))[0]


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
    folder = planned(tmp_path)
    of_request = {"points": [-1, 2], "tokens": [3]}
    for model, inputs in {
        "prompted": {"image": [-1], **of_request},
        "prompted_fused": {"image": [-1], **of_request},
        "prompted_preprocess": {"image": [-1]},
        "prompted_model": {"pixels": [8, 8, 3], "image_size": [2], **of_request},
    }.items():
        assert {one.name: list(one.dims) for one in config(folder, model, on_cpu=True).input} == inputs
    with pytest.raises(BadPipeline, match="prompted_fused takes points, tokens with each picture, by network_inputs"):
        InProcess(folder / "prompted_fused")


@pytest.mark.parametrize(("count", "stated"), [("count", "7"), (4, "")])
def test_the_limit_of_values_is_for_inputs_of_varying_size(tmp_path: Path, count: int | str, stated: str) -> None:
    """The proxy lets such requests through, and no larger ones."""
    folder = planned(tmp_path, count, limits={"max_input_values": 7, "max_body_bytes": 1000})
    for name in ("prompted", "prompted_fused"):
        assert config(folder, name).parameters["max_input_values"].string_value == stated
    most = (7 if count == "count" else 8) * 4 + 3 * 8
    assert {model.max_body_bytes for model in public_models(folder)} == {1000 + most}


@pytest.mark.parametrize(("most", "points"), [(4096, 4), (7, 3), (1, 1)])
def test_models_are_warmed_up_with_ones_in_shapes_that_the_build_ran(tmp_path: Path, most: int, points: int) -> None:
    """A network may divide by what it is given, and need more than one value; no more than the limit are taken."""
    folder = planned(tmp_path, limits={"max_input_values": most})
    values = {"image_size": (np.int32, [2]), "points": (np.float32, [points, 2]), "tokens": (np.int64, [3])}
    for model, names in (("prompted_model", values.keys()), ("prompted_fused", ("points", "tokens"))):
        (warmup,) = config(folder, model, on_cpu=True).model_warmup
        for name in names:
            (dtype, dims), given = values[name], warmup.inputs[name]
            assert list(given.dims) == dims
            found = np.fromfile(folder / model / "warmup" / given.input_data_file, dtype)
            np.testing.assert_array_equal(found.reshape(dims), 1)


def test_a_process_without_triton_gives_sizes(tmp_path: Path) -> None:
    network = prompted.write_sized(tmp_path)
    built = build(tmp_path / "sized.yaml", folder=tmp_path / "repository", onnx_file=network)
    model = InProcess(built.folder / "sized_fused")
    assert answer_in_process(model, np.zeros((30, 40, 3), np.uint8))["y"].tolist() == [[30, 40, 7]]


@pytest.mark.parametrize(("count", "backends"), [(2, ["python", "tensorrt"]), ("count", ["python", "python"])])
def test_a_gpu_runs_a_network_whose_inputs_have_one_size(tmp_path: Path, count: int | str, backends: list[str]) -> None:
    """Else the machine with a GPU runs it on its CPU, whose configuration it is."""
    folder = planned(tmp_path, count)
    fused, model = (config(folder, f"prompted_{role}") for role in ("fused", "model"))
    assert [fused.backend, model.backend] == backends
    for one in (fused, model):
        assert (one.instance_group[0].kind == ModelInstanceGroup.KIND_GPU) == (count == 2)
    if count == 2:
        dims = {name: list(one.dim) for name, one in model.optimization.cuda.graph_spec[0].input.items()}
        assert dims == {"pixels": [8, 8, 3], "image_size": [2], "points": [2, 2], "tokens": [3]}


def test_an_answer_of_another_size_for_each_picture_is_computed_on_the_cpu_of_a_gpu_s_machine(tmp_path: Path) -> None:
    """Engines on a GPU refuse to load such a network."""
    folder, notes = written(tmp_path / "painted.yaml", onnx.load(prompted.write_painted(tmp_path)))
    for role in ("fused", "model", "preprocess", "video"):
        model = config(folder, f"painted_{role}")
        assert (model.backend, model.instance_group[0].kind) == ("python", ModelInstanceGroup.KIND_CPU)
    text = "one image at a time, on the CPU of a machine with a GPU too: output 'y' has another size for each picture"
    assert notes == [text]


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


@pytest.mark.parametrize(
    ("name", "dtype", "dims", "given", "named"),
    [
        ("words", TensorProto.STRING, ["batch", 1], "request", "'words' takes string, which cannot .*; allowed: uint8"),
        # It would be served as an encoded picture.
        (
            "pixels/mask",
            TensorProto.FLOAT,
            ["batch", 4],
            "request",
            "'pixels/mask' cannot .* but image, pixels, pixels",
        ),
        # Triton's configuration holds no input of the batch alone.
        ("label", TensorProto.INT64, ["batch"], "request", r"'label' takes \['any'\]; .* least one dimension more"),
        # A table of seven rows would be served as a batch of single rows.
        ("table", TensorProto.FLOAT, [7, 3], "request", "dimension of the input 'table' is 7; .*the batch.* any of"),
        ("more", TensorProto.INT64, ["batch", 1], [0.5], "'more' takes int64, which does not hold 0.5"),
        ("more", TensorProto.UINT8, ["batch", 1], [300], "'more' takes uint8, which does not hold 300"),
        ("more", TensorProto.UINT8, ["batch", 1], [-1], "'more' takes uint8, which does not hold -1"),
        ("more", TensorProto.BOOL, ["batch", 1], [0.5], "'more' takes bool, which does not hold 0.5"),
        ("more", TensorProto.FLOAT16, ["batch", 1], [1e30], r"'more' takes float16, which does not hold 1e\+30"),
        ("more", TensorProto.STRING, ["batch", 1], [1], "'more' takes text; network_inputs gives numbers"),
    ],
)
def test_what_an_input_cannot_be_given(name: str, dtype: int, dims: list[int | str], given: Any, named: str) -> None:
    model = scaled_mean()
    model.graph.input.append(helper.make_tensor_value_info(name, dtype, dims))
    with pytest.raises(BadNetwork, match=named):
        prepare(model, DEFINITION, inputs={"offset": 0, "sizes": [1, 2, 3], name: given})


def test_a_scale_is_that_of_an_exact_resize() -> None:
    letterboxed = Definition.model_validate({"operations": [{"op": "decode"}, {"op": "letterbox", "size": [8, 8]}]})
    with pytest.raises(BadPipeline, match="scale_factor: image_scale is for a definition that resizes every picture"):
        prepare(prompted.prompted(), letterboxed, inputs=prompted.NETWORK_INPUTS)


@pytest.mark.parametrize(
    ("network", "fields", "form", "named"),
    [
        (prompted, {"video": {}}, "python", "video: frames come without points; streams take"),
        (siamese, {"video": {}}, "python", "video: frames come without second; .* no other picture"),
        (prompted, {"serving": {"precision": "int8"}}, "python", "int8 takes a network of the pixels and constants"),
        (prompted, {"network_inputs": {"picture": "pixel"}}, "python", r"inputs\.picture.*'pixels', 'request', 'image"),
        (siamese, {"network_inputs": {"right": {"image": "a b"}}}, "python", r"network_inputs\.right"),
        (siamese, {"network_inputs": {"right": {"picture": "a"}}}, "python", r"network_inputs\.right"),
        (prompted, {}, "dali-backend", r"dali-backend takes a network of the .* takes image_size, points, tokens"),
    ],
)
def test_a_pipeline_that_cannot_give_them(
    tmp_path: Path, network: Any, fields: dict[str, Any], form: Form, named: str
) -> None:
    onnx_file = network.write(tmp_path, "mine", **fields)
    with pytest.raises(BadPipeline, match=named):
        build(tmp_path / "mine.yaml", folder=tmp_path / "repository", onnx_file=onnx_file, form=form)


YOLO = {"kind": "detection", "family": "yolo"}
Y = [NetworkOutput("y", "float32", (12,))]
BOXES = [
    NetworkOutput(name, dtype, dims)
    for name, dtype, dims in zip(CANDIDATES, ("float32", "float32", "int32"), ((20, 4), (20,), (20,)), strict=True)
]


@pytest.mark.parametrize(
    ("postprocess", "outputs", "given", "named"),
    [
        ({"kind": "embedding"}, Y, {"embedding": "request"}, "embedding: with postprocess embedding another tensor of"),
        ({"kind": "raw"}, Y, {"network/y": "request"}, "network/y: with postprocess raw another tensor of the"),
        ({"kind": "raw"}, Y, {"a": {"image": "b"}, "b": "request"}, "b is a picture and a value of the request"),
        # Its boxes would be mapped to the picture twice.
        (YOLO, BOXES, {"image_size": "image_size_wh"}, "image_size: image_size_wh: postprocess detection maps what"),
    ],
)
def test_an_input_may_not_be_another_tensor_of_the_pipeline(
    postprocess: dict[str, Any], outputs: list[NetworkOutput], given: dict[str, Any], named: str
) -> None:
    fields = {"preprocess": {"operations": OPERATIONS}, "postprocess": postprocess, "network_inputs": given}
    names = [f"pixels/{one['image']}" if isinstance(one, dict) else name for name, one in given.items()]
    inputs = [EngineTensor(name, "float32", (2,)) for name in names]
    with pytest.raises(BadPipeline, match=named):
        plan(Pipeline.model_validate({"name": "mine", **fields}), outputs, inputs=inputs, labels=None)


# ---- two pictures

OF_TWO = Definition.model_validate(siamese.FIELDS["preprocess"])


@pytest.mark.parametrize("batch", ["batch", 1])
def test_each_picture_goes_through_the_definition_s_last_steps(batch: int | str) -> None:
    """Also in the network for TensorRT, which casts each before it is transposed."""
    served = prepare(siamese.siamese(batch), OF_TWO, inputs=siamese.FIELDS["network_inputs"])
    assert [(one.name, one.dtype, one.dims) for one in other_inputs(served)] == [("pixels/second", "uint8", (8, 8, 3))]
    moved = cast_first(served)
    for name in ("pixels", "pixels/second"):
        assert [node.op_type for node in moved.graph.node if name in node.input] == ["Cast"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 8, 8, 3), np.uint8)
    finish = OF_TWO.normalize
    planes = (pixels.transpose(0, 1, 4, 2, 3).astype(np.float32) / np.float32(finish.scale)) - np.float32(
        np.reshape(finish.mean, (3, 1, 1))
    )
    planes /= np.float32(np.reshape(finish.std, (3, 1, 1)))
    for model in (served, moved):
        engine = OnnxRuntimeEngine(model.SerializeToString(), threads=1)
        found = engine.run({"pixels": pixels[0], "pixels/second": pixels[1]})
        np.testing.assert_array_equal(found["both"], np.concatenate(list(planes), axis=1))


def test_the_models_declare_the_second_picture_which_has_limits_of_its_own(tmp_path: Path) -> None:
    siamese.write(tmp_path, limits={"max_body_bytes": 50_000})
    folder, _ = written(tmp_path / "siamese.yaml", siamese.siamese())
    roles = ("", "_fused", "_preprocess", "_model")
    ensemble, fused, preprocess, model = (config(folder, f"siamese{role}") for role in roles)
    for one in (ensemble, fused, preprocess):
        assert [given.name for given in one.input] == ["image", "second"]
        assert one.parameters["pictures"].string_value == "second"
    pixels = ["pixels", "pixels/second"]
    assert [one.name for one in preprocess.output] == [one.name for one in model.input] == pixels
    for one in (fused, preprocess, model):
        assert one.instance_group[0].kind == ModelInstanceGroup.KIND_GPU
    assert {one.max_body_bytes for one in public_models(folder)} == {100_000}
    with pytest.raises(BadPipeline, match="siamese_fused takes second with each picture, by network_inputs"):
        InProcess(folder / "siamese_fused")


def test_a_second_picture_that_does_not_fit_is_refused() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"left": "pixels", "right": {"image": "image"}}, BadPipeline, "right: {image: image}: a tensor of onestream"),
        ({"left": {"image": "a"}, "right": {"image": "b"}}, BadNetwork, "expected one input, the image; got 0"),
        ({"left": "pixels"}, BadNetwork, "got 2: left, right"),
    ]
    for inputs, error, named in cases:
        with pytest.raises(error, match=named):
            prepare(siamese.siamese(), OF_TWO, inputs=inputs)
    network = siamese.siamese()
    network.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 9
    with pytest.raises(BadNetwork, match=r"input .right. takes \[batch, 3, 9, 8\], the definition gives"):
        prepare(network, OF_TWO, inputs=siamese.FIELDS["network_inputs"])
