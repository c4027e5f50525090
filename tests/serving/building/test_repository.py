"""The committed repository is what the generator writes, and its configurations say what the pipeline says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import builds
import pytest
import yaml
from kind_networks import built_of, write_of
from tritonclient.grpc.model_config_pb2 import ModelConfig
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import Definition, Limits
from onestream.serving.building import build as building
from onestream.serving.building import certify, pipeline_repository, repository
from onestream.serving.building.build import build
from onestream.serving.built.triton_config import Device, from_text
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import GpuOptions, Pipeline, ServingOptions
from onestream.serving.stream_options import VideoOptions

ROOT = Path(__file__).parents[3]
PIPELINE_FILE = ROOT / "pipelines" / "classify.yaml"
COMMITTED = ROOT / "model_repository"
LABELS = (ROOT / "serving" / "data" / "imagenet_labels.txt").read_text(encoding="utf-8")
DEVICES: tuple[Device, ...] = ("cpu", "gpu")
LOGITS = NetworkOutput("logits", "float32", (1000,))


def planned(*, labels: str | None = LABELS, **changes: object) -> repository.Repository:
    """The repository of the default pipeline, with these parts changed."""
    pipeline = Pipeline.from_file(PIPELINE_FILE).model_copy(update=changes)
    return pipeline_repository.plan(pipeline, [LOGITS], labels=labels)


def files_of(**changes: object) -> dict[str, bytes]:
    return planned(**changes).files(source="pipelines/classify.yaml")


def with_gpu(batch: int = 64, **gpu: object) -> dict[str, bytes]:
    return files_of(serving=ServingOptions(max_batch_size=batch, gpu=GpuOptions.model_validate(gpu)))


def config(files: dict[str, bytes], path: str) -> ModelConfig:
    return from_text(files[path].decode())


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return files_of()


def test_the_committed_repository_is_the_generated_one(files: dict[str, bytes], repository: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "model_repository"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    committed = {line.removeprefix("model_repository/") for line in listed.stdout.splitlines()}
    assert committed == set(files), "run: make build, and commit model_repository"
    for path, content in files.items():
        assert (COMMITTED / path).read_bytes() == content, f"{path}: run make build, and commit model_repository"
    model = onnx_graph.load(repository / "classify_model" / "1" / "model.onnx")
    assert served_network.outputs(model) == [LOGITS]


def test_gpu_and_cpu_differ_only_in_how_a_model_runs(files: dict[str, bytes]) -> None:
    models = sorted(path.split("/")[0] for path in files if path.endswith("cpu.pbtxt"))
    assert models == [f"classify_{role}" for role in ("fused", "model", "postprocess", "preprocess", "video")]
    for name in models:
        gpu, cpu = config(files, f"{name}/config.pbtxt"), config(files, f"{name}/configs/cpu.pbtxt")
        # In front of one instance a GPU's queue has no bound (``Placement``).
        assert gpu.dynamic_batching.HasField("default_queue_policy") == (name == "classify_model")
        for one in (gpu, cpu):
            for field in ("backend", "instance_group", "optimization", "max_batch_size"):
                one.ClearField(field)
            one.parameters.pop("gpu", None)
            for tensor in one.input:
                tensor.ClearField("reshape")  # of Python's alone
            if one.HasField("dynamic_batching"):
                for field in ("default_queue_policy", "priority_levels", "default_priority_level"):
                    one.dynamic_batching.ClearField(field)
        assert gpu == cpu


def test_dims_come_from_the_definition(files: dict[str, bytes]) -> None:
    preprocess = config(files, "classify_preprocess/configs/cpu.pbtxt")
    model, fused, ensemble = (config(files, f"classify{role}/config.pbtxt") for role in ("_model", "_fused", ""))
    assert list(preprocess.output[0].dims) == list(model.input[0].dims) == [224, 224, 3]
    assert preprocess.input[0].allow_ragged_batch
    assert not preprocess.dynamic_batching.preferred_batch_size
    assert [output.name for output in fused.output] == ["scores", "class_ids", "labels"]
    assert list(fused.output) == list(ensemble.output)
    assert model.output[0].label_filename == "labels.txt"
    photo = files["classify_preprocess/warmup/photo.jpg"]
    assert list(preprocess.model_warmup[0].inputs["image"].dims) == [len(photo)]
    assert not [path for path in files_of(labels=None) if path.endswith("labels.txt")]


@pytest.mark.parametrize(
    ("serving", "expected"),
    [
        ({}, {"cpu": 64, "gpu": None}),
        ({"max_queue_size": 9, "gpu": {"max_queue_size": 128}}, {"cpu": 9, "gpu": 128}),
        ({"max_queue_size": 0}, {"cpu": None, "gpu": None}),
        # One process stalls behind a bounded queue, so it gets one only where that is said.
        ({"cpu_instances": 1}, {"cpu": None, "gpu": None}),
        ({"cpu_instances": 1, "max_queue_size": 5}, {"cpu": 5, "gpu": None}),
    ],
)
def test_queues_and_threads_are_those_of_the_pipeline(serving: dict[str, Any], expected: dict[str, Any]) -> None:
    options = ServingOptions.model_validate({**serving, "max_queue_ms": 1500, "cpu_threads": 3})
    for model in planned(serving=options).models:
        threads = model.config("cpu").parameters["threads"].string_value
        assert threads == ("" if model.name == "classify_postprocess" else "3")
        for device in DEVICES:
            batching = model.config(device).dynamic_batching
            size = None if model.name == "classify_postprocess" else expected[device]
            if (device, model.name) == ("gpu", "classify_model"):
                # Pixels wait there in the GPU's memory; one instance would stall behind the bound.
                size = size or 256
                assert model.config(device).instance_group[0].count == 2
            assert batching.HasField("default_queue_policy") == (size is not None)
            assert batching.priority_levels == (0 if size is None else 3)
            if size is not None:
                assert batching.default_priority_level == 2
                assert batching.default_queue_policy.max_queue_size == size
                assert batching.default_queue_policy.default_timeout_microseconds == 1_500_000
                assert batching.default_queue_policy.allow_timeout_override


def test_a_pipeline_that_takes_small_pictures_only_is_warmed_up_and_certified_with_these() -> None:
    """A pad without a resize refuses what is larger than itself."""
    small = Definition.model_validate({"operations": [{"op": "decode"}, {"op": "pad", "size": [32, 32]}]})
    model = config(files_of(preprocess=small), "classify_model/config.pbtxt")
    assert list(model.model_warmup[0].inputs["pixels"].dims) == [32, 32, 3]
    assert certify.issue(small).within


def test_a_certificate_says_what_decoding_at_a_fraction_changes() -> None:
    resize = {"op": "resize", "mode": "shorter", "size": 64}
    whole, scaled = (
        certify.issue(Definition.model_validate({"operations": [{"op": "decode", "dct_scaling": scales}, resize]}))
        for scales in (False, True)
    )
    assert (whole.dct_scaling, "dct_scaling" in whole.text()) == (None, False)
    assert scaled.within
    assert 0 < scaled.dct_scaling.mean < 2 < scaled.dct_scaling.max < 40
    assert f"dct_scaling changes up to {scaled.dct_scaling.max}" in scaled.summary()


def test_dct_scaling_is_refused_unless_the_cpu_decodes() -> None:
    resize = {"op": "resize", "mode": "exact", "size": [32, 32]}
    preprocess = {"operations": [{"op": "decode", "dct_scaling": True}, resize]}
    fields = {"name": "mine", "preprocess": preprocess, "postprocess": {"kind": "raw"}}
    for decode in ("gpu", "hybrid"):
        # The reason names the fields; their whole mapping does not follow it.
        with pytest.raises(BadPipeline, match=f"it takes serving.gpu.decode cpu, got {decode}$"):
            Pipeline.from_fields(Path("mine.yaml"), {**fields, "serving": {"gpu": {"decode": decode}}})
    Pipeline.from_fields(Path("mine.yaml"), {**fields, "serving": {"gpu": {"decode": "cpu"}}})


@pytest.mark.parametrize(
    ("limits", "file"),
    [
        ({}, "photo.jpg"),
        ({"formats": ["PNG"]}, "photo.png"),
        ({"max_body_bytes": 3000}, "photo.jpg"),
        ({"max_pixels": 100}, "photo.jpg"),
    ],
)
def test_models_are_warmed_up_with_a_picture_that_their_limits_let_in(limits: dict[str, Any], file: str) -> None:
    """They would not load otherwise."""
    allowed = Limits.model_validate(limits)
    files = files_of(limits=allowed)
    content = files[f"classify_fused/warmup/{file}"]
    allowed.check(content)
    assert list(config(files, "classify_fused/config.pbtxt").model_warmup[0].inputs["image"].dims) == [len(content)]
    with pytest.raises(BadPipeline, match="let in no picture with which a model could be warmed up: bad image"):
        planned(limits=Limits(max_body_bytes=9))


def test_bring_your_own_makes_the_five_models_and_a_second_build_what_changed(tmp_path: Path) -> None:
    built = built_of("classification", tmp_path)
    folder, file, onnx_file = built.folder, tmp_path / "mine.yaml", tmp_path / "mine.onnx"
    assert built.models == ["mine", "mine_preprocess", "mine_model", "mine_postprocess", "mine_fused"]
    assert {path.parts[-3] for path in folder.glob("*/1/model.onnx")} == {"mine_model", "mine_fused"}
    assert json.loads((folder / "mine" / "definition.json").read_text())["operations"][1]["op"] == "resize"
    for model in ("mine_postprocess", "mine_fused"):
        assert (folder / model / "labels.txt").read_text().splitlines() == ["Katze, groß", *"bcdefg"]
    assert not any("Katze" in path.read_text() for path in folder.rglob("*.pbtxt")), "names lie beside the models"
    described = yaml.safe_load(file.read_text())
    described["preprocess"]["operations"][1] = {"op": "letterbox", "size": [32, 32]}
    file.write_text(yaml.safe_dump(described))
    written = build(file, folder=folder).written
    assert folder / "mine_model" / "1" / "model.onnx" in written
    assert folder / "mine_preprocess" / "definition.json" in written
    onnx_file.unlink()
    with pytest.raises(BadNetwork, match=r"mine\.onnx, from which .* is gone; give its file: --onnx FILE"):
        build(file, folder=folder)


def test_the_command_says_what_was_built_and_what_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build", lambda file, **given: builds.build(file, **{**given, "version": 1}))
    onnx_file = write_of("classification", tmp_path)
    for version, then in ((1, "serve"), (2, "rollout mine --to 2 --photos PHOTOS")):
        folder = tmp_path / f"my models {version}"
        command = ["build", str(tmp_path / "mine.yaml"), f"--onnx={onnx_file}", f"--repository={folder}"]
        done = CliRunner().invoke(app, [*command, f"--version={version}"])
        *_, network, agreement, following = done.stdout.splitlines()
        assert network.endswith(f": network {onnx_file}")
        assert "preprocessing equals the reference in every bit on 6 photos" in agreement
        assert following == f"next: onestream {then} --repository '{folder}'"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"postprocess": {"kind": "classification", "top_k": 9}}, "top_k is 9, the network has 7 classes"),
        ({"postprocess": {"kind": "classification", "labels": "absent.txt"}}, "absent.txt.*No such file"),
        ({"postprocess": {"kind": "classification", "labels": "imagenet"}}, "1000 names, the network has 7 classes"),
        ({"postprocess": {"kind": "pose"}}, "postprocess: no kind 'pose' .*classification, .*raw, "),
        ({"serving": {"max_batch_size": 0}}, "serving.max_batch_size: .*greater than or equal to 1.*got 0"),
        ({"speling": 1}, "speling: no such field"),
        ({"name": "a b"}, "name: .*pattern"),
        ({"preprocess": {"operations": [{"op": "decode"}, {"op": "resize", "mode": "exact"}]}}, "got size None"),
        ({"preprocess": {"operations": [{"op": "center_crop", "size": [2, 2]}]}}, "decode or region, got center_crop"),
    ],
)  # fmt: skip
def test_a_bad_pipeline_is_refused_by_field(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    onnx_file, file = write_of("classification", tmp_path), tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))
    with pytest.raises(BadPipeline, match=reason):
        build(file, folder=tmp_path / "repository", onnx_file=onnx_file)
    assert not (tmp_path / "repository").exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_of("classification", tmp_path)
    with pytest.raises(BadPipeline, match=r"absent.yaml: No such file"):
        build(tmp_path / "absent.yaml", folder=tmp_path)
    with pytest.raises(BadPipeline, match="--onnx FILE"):
        build(tmp_path / "mine.yaml", folder=tmp_path)
    with pytest.raises(BadNetwork, match=r"absent.onnx: no such file"):
        build(tmp_path / "mine.yaml", folder=tmp_path, onnx_file=tmp_path / "absent.onnx")


def test_triton_replays_a_graph_for_every_batch() -> None:
    model = config(with_gpu(8, max_batch_size=24), "classify_model/config.pbtxt")
    graphs = [(one.graph_lower_bound.batch_size, one.batch_size) for one in model.optimization.cuda.graph_spec]
    assert graphs == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 24)]
    for one in model.optimization.cuda.graph_spec:
        assert list(one.input["pixels"].dim) == list(one.graph_lower_bound.input["pixels"].dim) == [224, 224, 3]
    assert list(model.instance_group[0].profile) == ["0", "1"]


def test_the_options_of_a_gpu_are_in_its_configurations_only() -> None:
    files = with_gpu(48, max_batch_size=32, engine="onnxruntime", decode="hybrid")
    model = config(files, "classify_model/config.pbtxt")
    assert (model.backend, model.max_batch_size) == ("onnxruntime", 32)
    assert not model.optimization.cuda.graphs
    (provider,) = model.optimization.execution_accelerators.gpu_execution_accelerator
    assert provider.name == "cuda"
    # The fused form's: float32 is float32, and no width of a region is timed in the middle of serving.
    assert dict(provider.parameters) == {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    # The backend reads this one from here: 1 is HEURISTIC.
    assert model.parameters["cudnn_conv_algo_search"].string_value == "1"
    assert not config(files, "classify_model/configs/cpu.pbtxt").HasField("optimization")
    assert config(files, "classify/config.pbtxt").max_batch_size == 32, "no step may take less than the ensemble"
    fused = config(files, "classify_fused/config.pbtxt")
    assert GpuOptions.model_validate_json(fused.parameters["gpu"].string_value).decode == "hybrid"
    on_cpu = config(files, "classify_fused/configs/cpu.pbtxt")
    assert on_cpu.max_batch_size == 48
    assert "gpu" not in on_cpu.parameters
    usual = with_gpu(1, engine="onnxruntime")
    assert config(usual, "classify_model/config.pbtxt").max_batch_size == 64, "in its own batches"


@pytest.mark.parametrize(("gpus", "first"), [("all", 0), ((2, 1), 2)])
def test_there_is_an_instance_on_each_gpu_and_video_on_the_first(gpus: str | tuple[int, ...], first: int) -> None:
    files, more = with_gpu(gpus=gpus), with_gpu(8, instances=3)
    for role in ("preprocess", "model", "fused"):
        (group,) = config(files, f"classify_{role}/config.pbtxt").instance_group
        # Triton takes no list for a list of all.
        assert (group.kind, list(group.gpus)) == (group.KIND_GPU, [] if gpus == "all" else [2, 1])
        # The network's queue is bounded, which takes two.
        assert group.count == (2 if role == "model" else 1)
        assert config(more, f"classify_{role}/config.pbtxt").instance_group[0].count == 3
        (on_cpu,) = config(files, f"classify_{role}/configs/cpu.pbtxt").instance_group
        assert (on_cpu.kind, list(on_cpu.gpus)) == (group.KIND_CPU, [])
    assert list(config(files, "classify_video/config.pbtxt").instance_group[0].gpus) == [first]


@pytest.mark.parametrize("decode", ["auto", "gpu", "cpu"])
def test_video_is_decoded_where_the_pipeline_says(decode: str) -> None:
    files = files_of(video=VideoOptions(decode=decode))
    group = config(files, "classify_video/config.pbtxt").instance_group[0]
    on_gpu = (group.KIND_GPU, [0])
    assert (group.kind, list(group.gpus)) == ((group.KIND_CPU, []) if decode == "cpu" else on_gpu)
    assert config(files, "classify_video/configs/cpu.pbtxt").instance_group[0].kind == group.KIND_CPU


@pytest.mark.parametrize("gpus", [[], [0, 0], [-1], "some"])
def test_gpus_that_nobody_can_have_are_refused(gpus: object) -> None:
    with pytest.raises(ValueError, match=r"name each GPU once, and at least one|greater than or equal to 0|'all'"):
        GpuOptions(gpus=gpus)


def test_float16_by_a_backend_that_runs_the_file_as_it_is_is_refused() -> None:
    with pytest.raises(BadPipeline, match="precision fp16 needs engine tensorrt"):
        with_gpu(4, engine="onnxruntime", precision="fp16")
