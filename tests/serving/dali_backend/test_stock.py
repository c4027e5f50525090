"""The repository for the unmodified container: its files, what its networks compute, what it is not mixed with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import builds
import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from kind_networks import write_of
from networks import CLASSES, ending_in, mean_color
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.postprocess.kinds.classification import top_k
from onestream.preprocess import CannotCompile, Definition
from onestream.serving.building.build import build
from onestream.serving.building.dali_backend.repository import StockRepository, install, plan
from onestream.serving.built.triton_config import ModelConfig, from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
NAMES = [f"class {index}, é" for index in range(CLASSES)]
PIXELS = np.random.default_rng(5).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
# Softmax sums in another order than NumPy does.
SCORE_TOLERANCE = 1e-6


OPERATIONS = [
    {"op": "decode"},
    {"op": "letterbox", "size": [32, 32]},
    {"op": "normalize", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]},
]


def pipeline_file(folder: Path, *, gpu: dict[str, Any], **changes: Any) -> Path:
    content = {
        "preprocess": {"operations": OPERATIONS},
        "postprocess": {"kind": "classification", "top_k": 3, "labels": "names.txt"},
        "serving": {"gpu": {"max_batch_size": 16, **gpu}, "max_batch_size": 4, "cpu_instances": 3, "cpu_threads": 2},
        **changes,
    }
    (folder / "names.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def stock(folder: Path, **changes: Any) -> Path:
    """Build the stock form of a small pipeline and return its folder."""
    (folder / "mine.onnx").write_bytes(mean_color().SerializeToString())
    built = builds.build(
        pipeline_file(folder, **{"gpu": {"engine": "onnxruntime"}, **changes}),
        folder=folder / "stock",
        onnx_file=folder / "mine.onnx",
        form="dali-backend",
    )
    assert built.models == ["mine", "mine_preprocess", "mine_model"]
    return built.folder


@cache
def network(*last: str) -> onnx.ModelProto:
    """The served network of the pipeline, with these operators at its end."""
    model = ending_in(*last) if last else mean_color()
    return onnx_graph.prepare(model, Definition.model_validate({"operations": OPERATIONS}))


def planned(folder: Path, last: Sequence[str] = (), **changes: Any) -> StockRepository:
    """What a build of the same would write, without one."""
    pipeline = Pipeline.from_file(pipeline_file(folder, **{"gpu": {"engine": "onnxruntime"}, **changes}))
    suited = pipeline.postprocess.suited_to(served_network.outputs(network(*last)))
    names = (folder / "names.txt").read_text(encoding="utf-8") if suited.kind == "classification" else None
    return plan(pipeline.model_copy(update={"postprocess": suited}), network(*last), labels=names)


def written(folder: Path, last: Sequence[str] = (), **changes: Any) -> Path:
    """The folder into which those files were written."""
    for path, content in planned(folder, last, **changes).files(source="mine.yaml").items():
        (folder / "stock" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "stock" / path).write_bytes(content)
    return folder / "stock"


def config(repository: Path, path: str) -> ModelConfig:
    return from_text((repository / path).read_text(encoding="utf-8"))


def files(repository: Path) -> set[str]:
    return {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}


def run(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return dict(zip([out.name for out in session.get_outputs()], session.run(None, {"pixels": PIXELS}), strict=True))


def logits() -> np.ndarray[Any, Any]:
    return OnnxRuntimeEngine(network().SerializeToString(), threads=1).run_together({"pixels": PIXELS})["scores_out"]


COMMON = {
    "README.md",
    "mine/config.pbtxt",
    "mine/definition.json",
    "mine/1/.gitkeep",
    "mine_preprocess/config.pbtxt",
    "mine_preprocess/configs/cpu.pbtxt",
    "mine_preprocess/definition.json",
    "mine_preprocess/1/dali.py",
    "mine_preprocess/warmup/photo.jpg",
    "mine_model/config.pbtxt",
    "mine_model/configs/cpu.pbtxt",
    "mine_model/definition.json",
    "mine_model/labels.txt",
    "mine_model/1/model.onnx",
}


def test_with_onnx_runtime_the_repository_is_complete_and_the_same_each_time(tmp_path: Path) -> None:
    repository = stock(tmp_path)
    assert files(repository) == COMMON | {"mine_model/1/built_from.txt"}
    outputs = run(repository / "mine_model/1/model.onnx")
    scores, class_ids = top_k(logits(), 3)
    np.testing.assert_array_equal(outputs["class_ids"], class_ids)
    np.testing.assert_allclose(outputs["scores"], scores, rtol=0, atol=SCORE_TOLERANCE)
    assert outputs["labels"].tolist() == [[NAMES[index] for index in row] for row in class_ids]
    ensemble = config(repository, "mine/config.pbtxt")
    assert [output.name for output in ensemble.output] == ["scores", "class_ids", "labels"]
    again = planned(tmp_path).files(source=f"{tmp_path.name}/mine.yaml")
    assert again == {path: (repository / path).read_bytes() for path in COMMON}


def test_with_tensorrt_a_script_makes_the_plan_and_there_are_no_strings(tmp_path: Path) -> None:
    repository = written(tmp_path, gpu={"engine": "tensorrt"})
    assert files(repository) == COMMON | {"mine_model/1/gpu.onnx", "mine_model/build_plan.sh"}
    gpu, cpu = (config(repository, f"mine_model/{name}") for name in ("config.pbtxt", "configs/cpu.pbtxt"))
    assert (gpu.backend, cpu.backend) == ("tensorrt", "onnxruntime")
    names = ["scores", "class_ids"]
    assert [output.name for output in gpu.output] == [output.name for output in cpu.output] == names
    assert [output.name for output in config(repository, "mine/config.pbtxt").output] == names
    on_gpu, on_cpu = (run(repository / f"mine_model/1/{name}") for name in ("gpu.onnx", "model.onnx"))
    assert list(on_gpu) == names
    for name in names:
        np.testing.assert_array_equal(on_gpu[name], on_cpu[name])
    graph = onnx.load(str(repository / "mine_model/1/gpu.onnx")).graph
    assert {node.op_type for node in graph.node if "pixels" in node.input} == {"Cast"}
    # The script calls trtexec with the profiles of the configuration.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "trtexec").write_text('#!/bin/sh\npwd\nfor option; do echo "$option"; done\n')
    (tools / "trtexec").chmod(0o755)
    ran = subprocess.run(
        ["sh", str(repository / "mine_model/build_plan.sh"), "--verbose"],
        env={"PATH": f"{tools}:{os.defpath}"}, cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    called = [str(repository / "mine_model/1"), "--onnx=gpu.onnx", "--saveEngine=model.plan", "--skipInference"]
    called += ["--stronglyTyped", "--noTF32"]
    for profile, tuned in enumerate((8, 16)):
        called += [f"--profile={profile}", "--minShapes=pixels:1x32x32x3", f"--optShapes=pixels:{tuned}x32x32x3"]
        called.append("--maxShapes=pixels:16x32x32x3")
    assert ran.stdout.splitlines() == [*called, "--verbose"]
    assert (gpu.max_batch_size, list(gpu.instance_group[0].profile)) == (16, ["0", "1"])


@pytest.mark.parametrize("last", [[], ["Softmax"]])
@pytest.mark.parametrize("engine", ["onnxruntime", "tensorrt"])
def test_half_precision_is_for_the_gpu_only(tmp_path: Path, engine: str, last: list[str]) -> None:
    """Scores that a network ends in stay as they are."""
    repository = written(tmp_path, last, gpu={"engine": engine, "precision": "fp16"})
    half, whole = (run(repository / f"mine_model/1/{name}")["scores"] for name in ("gpu.onnx", "model.onnx"))
    gpu, cpu = (config(repository, f"mine_model/{name}") for name in ("config.pbtxt", "configs/cpu.pbtxt"))
    assert gpu.default_model_filename == ("gpu.onnx" if engine == "onnxruntime" else "")
    assert cpu.default_model_filename == ""
    assert half.dtype == np.float32
    for scores in (half, whole):
        # Logits of a few units in float16 are off by up to 2e-3, and softmax keeps that.
        np.testing.assert_allclose(scores, top_k(logits(), 3)[0], rtol=0, atol=5e-3)
    assert not np.array_equal(half, whole)


@pytest.mark.parametrize("engine", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize(("precision", "allowed"), [("auto", False), ("fp16", False), ("tf32", True)])
def test_float32_is_float32_unless_the_file_says_tf32(
    tmp_path: Path, engine: str, precision: str, allowed: bool
) -> None:
    """TensorRT and ONNX Runtime would both use TF32 by default."""
    repository = written(tmp_path, gpu={"engine": engine, "precision": precision})
    if engine == "tensorrt":
        assert ("--noTF32" in (repository / "mine_model/build_plan.sh").read_text()) is not allowed
        return
    accelerators = config(repository, "mine_model/config.pbtxt").optimization.execution_accelerators
    (cuda,) = accelerators.gpu_execution_accelerator
    assert (cuda.name, cuda.parameters["use_tf32"]) == ("cuda", "1" if allowed else "0")


def test_the_configurations_fit_the_backends(tmp_path: Path) -> None:
    repository = written(tmp_path)
    preprocess = config(repository, "mine_preprocess/config.pbtxt")
    on_cpu = config(repository, "mine_preprocess/configs/cpu.pbtxt")
    assert preprocess.backend == on_cpu.backend == "dali"
    assert preprocess.input[0].allow_ragged_batch
    assert (preprocess.max_batch_size, on_cpu.max_batch_size) == (16, 4)
    assert list(preprocess.output[0].dims) == [32, 32, 3]
    # A larger batch fails in the DALI backend where there is no driver.
    assert list(on_cpu.dynamic_batching.preferred_batch_size) == [1]
    assert not preprocess.dynamic_batching.preferred_batch_size
    assert (on_cpu.instance_group[0].count, on_cpu.instance_group[0].kind) == (3, ModelInstanceGroup.KIND_CPU)
    assert preprocess.instance_group[0].kind == ModelInstanceGroup.KIND_GPU
    threads = config(repository, "mine_model/configs/cpu.pbtxt").parameters["intra_op_thread_count"].string_value
    assert (on_cpu.parameters["num_threads"].string_value, threads) == ("1", "2")
    ensemble = config(repository, "mine/config.pbtxt")
    assert ensemble.max_batch_size == 1
    inputs = [dict(step.input_map) for step in ensemble.ensemble_scheduling.step]
    assert inputs == [{"image": "image"}, {"pixels": "pixels"}]
    # Every model carries the stamp, and none needs us.
    definition = Pipeline.from_file(tmp_path / "mine.yaml").preprocess
    for path in repository.rglob("*.pbtxt"):
        parameters = config(repository, str(path.relative_to(repository))).parameters
        assert parameters["definition_digest"].string_value == definition.digest
        assert from_text(path.read_text()).backend != "python"
    for path in repository.rglob("definition.json"):
        assert Definition.from_json(path.read_text()) == definition
    assert [path.name for path in repository.rglob("*.py")] == ["dali.py"]


def test_raw_outputs_pass_through(tmp_path: Path) -> None:
    repository = written(tmp_path, postprocess={"kind": "raw"})
    assert [output.name for output in config(repository, "mine/config.pbtxt").output] == ["scores_out"]
    np.testing.assert_array_equal(run(repository / "mine_model/1/model.onnx")["scores_out"], logits())


def test_a_plan_of_another_network_does_not_stay(tmp_path: Path) -> None:
    repository = tmp_path / "stock"
    plan_file = repository / "mine_model/1/model.plan"

    def installed(**changes: Any) -> bool:
        """Whether a plan that was made before stays."""
        plan_file.parent.mkdir(parents=True, exist_ok=True)
        plan_file.write_bytes(b"made on some GPU")
        install(planned(tmp_path, **changes), repository, source="mine.yaml")
        return plan_file.exists()

    tensorrt = {"gpu": {"engine": "tensorrt"}}
    assert [installed(**tensorrt), installed(**tensorrt)] == [False, True]
    assert not installed()
    assert "mine_model/1/gpu.onnx" not in files(repository)


def test_the_two_forms_do_not_share_a_folder(tmp_path: Path) -> None:
    other = tmp_path / "stock" / "other"
    other.mkdir(parents=True)
    # A model that is not ours may stand beside.
    (other / "config.pbtxt").write_text('name: "other" backend: "python"')
    repository = stock(tmp_path)
    before = files(repository)
    assert "other/config.pbtxt" in before
    with pytest.raises(BadPipeline, match="holds mine, built with --form dali-backend; give --form python"):
        build(tmp_path / "mine.yaml", folder=repository, onnx_file=tmp_path / "mine.onnx")
    assert files(repository) == before
    command = ["build", str(tmp_path / "mine.yaml"), "--onnx", str(tmp_path / "mine.onnx"), "--form", "dali-backend"]
    shutil.copytree(ROOT / "model_repository" / "classify", tmp_path / "python" / "classify")
    refused = CliRunner().invoke(app, [*command, "--repository", str(tmp_path / "python")])
    assert refused.exit_code == 1
    assert "built with --form python" in refused.output.replace("\n", " ")
    accepted = CliRunner().invoke(app, [*command, "--repository", str(repository)])
    assert accepted.exit_code == 0
    assert f"next: serve it as {repository}/README.md says" in accepted.output
    assert files(repository) == before


def test_what_this_form_cannot_do_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    operations = [
        {"op": "decode"},
        {"op": "resize", "mode": "exact", "size": [32, 32], "filter": "lanczos"},
        {"op": "normalize", "mean": [0, 0, 0], "std": [1, 1, 1]},
    ]
    with pytest.raises(CannotCompile, match="'lanczos'"):
        stock(tmp_path, preprocess={"operations": operations})
    network_file = write_of("segmentation", tmp_path)
    with pytest.raises(BadPipeline, match=r"^postprocess segmentation maps results back .* build the form python"):
        build(tmp_path / "mine.yaml", folder=tmp_path / "stock", onnx_file=network_file, form="dali-backend")
    assert not (tmp_path / "stock").exists()
