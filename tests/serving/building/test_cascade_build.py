"""Builds of cascades: what is refused before anything is written, and what the build tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from builds import build
from cascades import SHARED, write_things
from onnx import helper
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from onestream.preprocess import Definition
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Region
from onestream.serving.building import certify
from onestream.serving.building.build import Built
from onestream.serving.built.triton_config import Device, from_text
from onestream.serving.cascade import SERVED_STAGES
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import GpuOptions


def build_things(folder: Path, *, mix_batch: bool = False, **fields: Any) -> Built:
    """Build *things*, whose second network may take the other regions of its batch into account."""
    networks = write_things(folder, **fields)
    if mix_batch:
        model = onnx.load(networks["name"])
        model.graph.node[-1].output[0] = "alone"
        model.graph.node.append(helper.make_node("ReduceMean", ["alone"], ["over_batch"], axes=[0], keepdims=1))
        model.graph.node.append(helper.make_node("Sub", ["alone", "over_batch"], ["out"]))
        onnx.save(model, networks["name"])
    return build(folder / "things.yaml", folder=folder / "repository", onnx_files=networks)


def test_a_model_of_another_pipeline_is_not_replaced(tmp_path: Path) -> None:
    folder, alone = tmp_path / "repository", tmp_path / "things_name.yaml"
    operations = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [16, 16]}]
    alone.write_text(yaml.safe_dump({"preprocess": {"operations": operations}, "postprocess": {"kind": "raw"}}))

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    build_things(tmp_path, **SHARED)
    before = contents()
    with pytest.raises(BadPipeline, match=r"things_name and things both have a model things_name_model, .* of things;"):
        build(alone, folder=folder, onnx_file=tmp_path / "name.onnx")
    assert contents() == before


def configs(folder: Path, device: Device) -> dict[str, ModelConfig]:
    file = {"cpu": "configs/cpu.pbtxt", "gpu": "config.pbtxt"}[device]
    return {model.name: from_text((model / file).read_text()) for model in sorted((folder / "repository").iterdir())}


def test_with_that_engine_networks_and_the_fused_form_are_on_the_gpu(tmp_path: Path) -> None:
    (note,) = build_things(tmp_path, **SHARED).notes
    assert note.startswith("serving.gpu is not used: with engine tensorrt")
    assert note.endswith("it runs there with engine onnxruntime")
    before = configs(tmp_path, "cpu")
    # Without it a machine with a GPU reads what any other does.
    assert configs(tmp_path, "gpu") == before
    gpu = {"engine": "onnxruntime", "precision": "tf32", "gpus": [1], "max_batch_size": 9}
    assert build_things(tmp_path, serving={"gpu": gpu}, video={}).notes == []
    found = configs(tmp_path, "gpu")
    on_gpu = {
        name: (config.backend, config.max_batch_size, [*config.instance_group[0].gpus])
        for name, config in found.items()
        if config.instance_group[0].kind == ModelInstanceGroup.KIND_GPU
    }
    assert on_gpu == {
        "things_find_model": ("onnxruntime", 9, [1]),
        "things_fused": ("python", 9, [1]),
        "things_name_model": ("onnxruntime", 9, [1]),
    }
    for network in ("things_find_model", "things_name_model"):
        (provider,) = found[network].optimization.execution_accelerators.gpu_execution_accelerator
        assert dict(provider.parameters) == {"use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"}
        assert found[network].parameters["cudnn_conv_algo_search"].string_value == "1"
    assert GpuOptions.model_validate_json(found["things_fused"].parameters["gpu"].string_value).gpus == (1,)
    (find, name) = SERVED_STAGES.validate_json(found["things_fused"].parameters["stages"].string_value)
    assert (find.gpu_batch, name.gpu_batch) == (9, 9)
    cpu = configs(tmp_path, "cpu")
    assert [found[name] == cpu[name] for name in ("things", "things_video")] == [True, True]
    for name, config in before.items():
        for one in (config, cpu[name]):
            one.parameters["stages"].Clear()
        assert cpu[name] == config


def on_gpu(**options: str) -> dict[str, Any]:
    return {"serving": {"gpu": {"engine": "onnxruntime", **options}}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (on_gpu(backend="dali"), r"serving\.gpu\.backend: dali .* expected cvcuda"),
        (on_gpu(decode="cpu"), r"serving\.gpu\.decode: cpu .* expected gpu or hybrid"),
        (on_gpu(resize="hq"), r"serving\.gpu\.resize: hq .* expected exact"),
        (on_gpu(precision="fp16"), r"serving\.gpu\.precision: fp16 .* expected fp32 or tf32"),
        ({"region": {"classes": [0, 1]}}, "has 1, which is no class of stage find; expected one of its 1 ids, 0 to 0"),
        ({"find": {"class_ids": [7]}, "region": {"classes": [0]}}, "has 0, .* expected one of its 1 ids, 7 to 7"),
        ({"find": {"labels": ["bolt"]}, "region": {"classes": ["nut"]}}, "has 'nut', .* expected bolt"),
        ({"region": {"classes": ["nut"]}}, "has 'nut', .* expected ids, since it has no labels"),
    ],
)
def test_what_a_cascade_cannot_do_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    """On a GPU, and of the classes of regions."""
    said = f"stage name: region.classes {reason}" if "region" in fields else reason
    with pytest.raises(BadPipeline, match=said):
        build_things(tmp_path, **fields)
    assert not (tmp_path / "repository").exists()


def test_a_network_that_takes_no_batches_takes_none_on_a_gpu(tmp_path: Path) -> None:
    """Its region names classes that the first stage has."""
    options: dict[str, Any] = {"class_ids": [7], "labels": ["bolt"]}
    region = {"classes": [7, "bolt"]}
    serving = {"gpu": {"engine": "onnxruntime"}, "triton": {"find_model": {"instance_group": [{"count": 5}]}}}
    built = build_things(tmp_path, mix_batch=True, find=options, region=region, serving=serving)
    assert [note.partition(":")[0] for note in built.notes] == ["stage name"]
    found = configs(tmp_path, "gpu")
    assert found["things_name_model"].max_batch_size == 1
    stages = SERVED_STAGES.validate_json(found["things_fused"].parameters["stages"].string_value)
    assert [stage.gpu_batch for stage in stages] == [64, 1]
    cpu = configs(tmp_path, "cpu")["things_find_model"]
    assert [group.count for group in cpu.instance_group] == [5], "networks are roles of serving.triton"


@pytest.mark.parametrize(
    ("margin", "stages"),
    [pytest.param(7, ["region", "resize", "crop", "normalize"], marks=pytest.mark.slow), (10, [])],
)
def test_a_wide_margin_is_certified_by_the_regions_that_can_be_cut(margin: float, stages: list[str]) -> None:
    """At 7 one region of one photo is small enough, at 10 none."""
    region = Region(of="find", shape="quad", margin=margin)
    found = certify.issue(Definition(operations=[region, Resize(mode="exact", size=(32, 32))]))
    assert list(found.stages) == stages
    assert found.within
    assert ("with a margin of 10" in found.unmeasured) == (not stages)
