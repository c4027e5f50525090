"""How a build in int8 finds its setting: what it prefers, what it keeps in float32, and settings that do not work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from int8_networks import color_network, in_int8, pipeline_file, searched
from onnx import numpy_helper

from onestream.serving.building.build import Built, build
from onestream.serving.building.quantization import search
from onestream.serving.building.quantization.quantize import Quantizable
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine.quantization import Quantization, Settings
from onestream.serving.errors import BadNetwork

LAYERS = 8
"""Convolutions, and a linear layer after them."""


def network_with_wide_channels(*places: int) -> onnx.ModelProto:
    """Those of these layers have a channel of a constant that nothing reads, and whose width ruins the others."""
    network = color_network(layers=LAYERS)
    for tensor in network.graph.initializer:
        if tensor.name in {f"bias_{place}" for place in places}:
            values = numpy_helper.to_array(tensor).copy()
            values[-1] = 3e4
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return network


def price(built: Built) -> Quantization:
    return built.quantizations["colors"]


def test_the_layers_that_int8_ruins_stay_in_float32(tmp_path: Path) -> None:
    """Three parts of two layers each, which are tried one by one and taken together."""
    wide = (2, 5)
    made, found = searched(tmp_path, network_with_wide_channels(*wide))
    assert found.agreement.share == 1
    # What makes the wide tensor, and what reads it.
    assert {f"conv_{place + at}" for place in wide for at in (0, 1)} <= set(found.settings.kept_layers)
    assert found.settings.kept == "layers 3-4 and 5-6 and 7-8 of 9"
    # Those before it were tried first and cost too much.
    assert all(one.agreement.share < found.min_agreement for one in found.tried[:-1])
    nodes = made.network.graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output}
    assert set(found.settings.kept_layers) < {node.name for node in nodes}
    for node in nodes:
        if node.op_type == "Conv":
            in_floats = node.name in found.settings.kept_layers
            assert (made_by.get(node.input[1]) != "DequantizeLinear") == in_floats


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        # In the order of trying: minmax per channel and per tensor, then percentile, then entropy.
        ([3.0, 2.0, 3.0, 3.0, 3.0, 3.0], Settings(weights="per_tensor", ranges="minmax")),
        ([2.05, 2.0, 3.0, 2.0, 3.0, 3.0], Settings(weights="per_channel", ranges="minmax")),
        ([3.0, 3.0, 3.0, 3.0, 2.04, 2.0], Settings(weights="per_channel", ranges="entropy")),
    ],
)
def test_of_equal_settings_the_first_that_is_as_fast_as_any_is_taken(
    times: list[float], chosen: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(engines: Sequence[object], *_arguments: object, **_options: object) -> list[float]:
        return [5.0, *times][: len(engines)]

    monkeypatch.setattr(search, "medians_ms", timed)
    found = searched(tmp_path)[1]
    assert {one.agreement.rank for one in found.tried} == {found.agreement.rank}, "all are equal"
    assert found.settings == chosen
    assert (found.speed.float32_ms, found.speed.ms) == (
        5.0,
        times[[t.settings for t in found.tried].index(chosen)],
    )


def stumble(_network: Quantizable, _settings: Settings) -> onnx.ModelProto:
    raise BadNetwork("the tools stumble")


def test_a_setting_that_does_not_work_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Quantizable.for_cpu

    def for_cpu(network: Quantizable, settings: Settings) -> onnx.ModelProto:
        made = works(network, settings)
        if settings.ranges == "percentile":
            stumble(network, settings)
        if settings.ranges == "entropy":
            # It is written, and ONNX Runtime cannot load it.
            made.graph.node[-1].op_type = "NoSuchOperator"
        return made

    monkeypatch.setattr(Quantizable, "for_cpu", for_cpu)
    found = searched(tmp_path)[1]
    assert {one.settings.ranges for one in found.tried} == {"minmax"}
    assert found.agreement.share == 1


def test_where_no_setting_works_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quantizable, "for_cpu", stumble)
    with pytest.raises(BadNetwork, match="the tools stumble"):
        searched(tmp_path)


def test_a_cpu_gets_int8_where_there_is_none_for_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quantizable, "for_tensorrt", stumble)
    built = in_int8(tmp_path, anew=True)
    assert (price(built).agreement.share, price(built).tensorrt) == (1, None)
    assert built.notes == ["on a GPU it runs in float32: the tools stumble"]
    with pytest.raises(BadNetwork, match=r"there is no network for it: the tools stumble\. Nothing was installed"):
        in_int8(tmp_path, serving={"gpu": {"precision": "int8"}}, anew=True)


def test_a_gpu_that_runs_float32_is_told_why(tmp_path: Path) -> None:
    built = in_int8(tmp_path, serving={"gpu": {"engine": "onnxruntime"}})
    assert built.notes == [
        "on a GPU it runs in float32: int8 there is for engine tensorrt, and serving.gpu.engine is onnxruntime"
    ]
    model = built.folder / "colors_model"
    on_gpu, on_cpu = (from_text((model / name).read_text()) for name in ("config.pbtxt", "configs/cpu.pbtxt"))
    assert (on_gpu.default_model_filename, on_cpu.default_model_filename) == ("model.float32.onnx", "")
    assert not list(built.folder.glob("*/1/model.tensorrt.onnx"))
    # The network that was calibrated for that engine is kept, and TensorRT has none.
    file, own = pipeline_file(tmp_path, color_network())
    again = build(file, folder=built.folder, onnx_file=own, precision="int8")
    assert again.notes == [
        "on a GPU it runs in float32: there is no network that was calibrated for TensorRT; calibrate again: "
        "--calibrate PHOTOS"
    ]
    file, own = pipeline_file(tmp_path, color_network(), gpu={"precision": "int8"})
    with pytest.raises(BadNetwork, match=r"there is no network for it: .*--calibrate PHOTOS"):
        build(file, folder=built.folder, onnx_file=own, precision="int8")


def test_the_setting_does_not_depend_on_the_order_of_the_pictures(tmp_path: Path) -> None:
    found = [searched(tmp_path / str(turned), turned=turned)[1] for turned in (False, True)]
    assert found[0].pictures == found[1].pictures
    assert [one.agreement for one in found[0].tried] == [one.agreement for one in found[1].tried]
    assert np.isfinite(found[0].agreement.mean_change)
