"""Networks of two pictures: the served graph, the models, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import siamese
import yaml
from builds import build
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from onestream.preprocess import Definition
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.served import cast_first, other_inputs
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_graph import prepare
from onestream.serving.models.in_process import InProcess
from onestream.serving.proxy.settings import public_models

DEFINITION = Definition.model_validate(siamese.FIELDS["preprocess"])


@pytest.mark.parametrize("batch", ["batch", 1])
def test_each_picture_goes_through_the_definition_s_last_steps(batch: int | str) -> None:
    network = siamese.siamese(batch)
    served = prepare(network, DEFINITION, inputs=siamese.FIELDS["network_inputs"])
    assert [(one.name, one.dtype, one.dims) for one in other_inputs(served)] == [("pixels/second", "uint8", (8, 8, 3))]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 8, 8, 3), np.uint8)
    engine = OnnxRuntimeEngine(served.SerializeToString(), threads=1)
    found = engine.run({"pixels": pixels[0], "pixels/second": pixels[1]})
    finish = DEFINITION.normalize
    planes = (pixels.transpose(0, 1, 4, 2, 3).astype(np.float32) / np.float32(finish.scale)) - np.float32(
        np.reshape(finish.mean, (3, 1, 1))
    )
    planes /= np.float32(np.reshape(finish.std, (3, 1, 1)))
    np.testing.assert_array_equal(found["both"], np.concatenate(list(planes), axis=1))


def test_the_network_for_tensorrt_casts_each_picture_before_it_is_transposed() -> None:
    served = prepare(siamese.siamese(), DEFINITION, inputs=siamese.FIELDS["network_inputs"])
    moved = cast_first(served)
    for name in ("pixels", "pixels/second"):
        assert [node.op_type for node in moved.graph.node if name in node.input] == ["Cast"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 8, 8, 3), np.uint8)
    given = {"pixels": pixels[0], "pixels/second": pixels[1]}
    one, other = (OnnxRuntimeEngine(model.SerializeToString(), threads=1).run(given) for model in (served, moved))
    np.testing.assert_array_equal(one["both"], other["both"])


def test_the_models_declare_the_second_picture_which_has_limits_of_its_own(tmp_path: Path) -> None:
    network = siamese.write(tmp_path, limits={"max_body_bytes": 50_000})
    folder = build(tmp_path / "siamese.yaml", folder=tmp_path / "repository", onnx_file=network).folder
    configs = {
        name: from_text((folder / name / "config.pbtxt").read_text())
        for name in ("siamese", "siamese_fused", "siamese_preprocess", "siamese_model")
    }
    for name in ("siamese", "siamese_fused", "siamese_preprocess"):
        assert [one.name for one in configs[name].input] == ["image", "second"]
        assert configs[name].parameters["pictures"].string_value == "second"
    assert [one.name for one in configs["siamese_preprocess"].output] == ["pixels", "pixels/second"]
    assert [one.name for one in configs["siamese_model"].input] == ["pixels", "pixels/second"]
    for name in ("siamese_preprocess", "siamese_model", "siamese_fused"):
        assert configs[name].instance_group[0].kind == ModelInstanceGroup.KIND_GPU
    assert {model.max_body_bytes for model in public_models(folder)} == {100_000}
    with pytest.raises(BadPipeline, match="siamese_fused takes second with each picture, by network_inputs"):
        InProcess(folder / "siamese_fused")


@pytest.mark.parametrize(
    ("inputs", "error", "named"),
    [
        ({"left": "pixels", "right": {"image": "image"}}, BadPipeline, "right: {image: image}: a tensor of onestream"),
        ({"left": {"image": "a"}, "right": {"image": "b"}}, BadNetwork, "expected one input, the image; got 0"),
        ({"left": "pixels"}, BadNetwork, "got 2: left, right"),
    ],
)
def test_what_does_not_fit_is_refused(inputs: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        prepare(siamese.siamese(), DEFINITION, inputs=inputs)


def test_another_picture_has_the_shape_of_the_first() -> None:
    network = siamese.siamese()
    network.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 9
    with pytest.raises(BadNetwork, match=r"input .right. takes \[batch, 3, 9, 8\], the definition gives"):
        prepare(network, DEFINITION, inputs=siamese.FIELDS["network_inputs"])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"video": {}}, "video: frames come without second; .* no other picture"),
        ({"serving": {"precision": "int8"}}, "serving.precision int8 takes a network of the pixels and constants"),
        ({"network_inputs": {"left": "pixels", "right": {"image": "a b"}}}, r"network_inputs\.right"),
        ({"network_inputs": {"left": "pixels", "right": {"picture": "a"}}}, r"network_inputs\.right"),
    ],
)
def test_a_pipeline_that_cannot_give_it_is_refused(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    network = siamese.write(tmp_path, **fields)
    with pytest.raises(BadPipeline, match=named):
        build(tmp_path / "siamese.yaml", folder=tmp_path / "repository", onnx_file=network)


def test_a_picture_and_a_value_of_a_request_have_names_of_their_own(tmp_path: Path) -> None:
    model = siamese.siamese()
    model.graph.input.append(onnx.helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, ["batch", 1]))
    model.graph.node.append(onnx.helper.make_node("Identity", ["second"], ["same"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, ["batch", 1]))
    onnx.save(model, tmp_path / "mine.onnx")
    inputs = siamese.FIELDS["network_inputs"] | {"second": "request"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(siamese.FIELDS | {"network_inputs": inputs}))
    with pytest.raises(BadPipeline, match="network_inputs: second is a picture and a value of the request"):
        build(tmp_path / "mine.yaml", folder=tmp_path / "repository", onnx_file=tmp_path / "mine.onnx")
