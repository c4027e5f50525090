"""On a GPU machine, Triton gets plans that fit, before it starts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_models import FREE_PORTS

from onestream.preprocess.cuda.device import GpuKind, driver_visible
from onestream.serving.built.triton_config import from_text, to_text
from onestream.serving.engine.cache import ensure_plan
from onestream.serving.engine.library import IS_RTX
from onestream.serving.engine.plan import PlanOptions
from onestream.serving.graph.onnx_postprocess import fused_network
from onestream.serving.server.errors import ModelLoadFailed, StopRequested
from onestream.serving.server.server import Server
from onestream.serving.server.tensorrt_prebuild import PlanRequest, Plans, build_apart, fit_plans, plans_needed

pytestmark = pytest.mark.skipif(not IS_RTX, reason="TensorRT itself builds on a GPU only: see test_engine_on_gpu.py")

ADA = (8, 9)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONESTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


def for_ada(requests: Sequence[PlanRequest], *more: Callable[..., Any]) -> list[Plans]:
    """Real plans, for a GPU that this machine does not have."""
    return build_apart([request.model_copy(update={"compute_capability": ADA}) for request in requests], *more)


def no_build(requests: Sequence[PlanRequest], *_: object) -> list[Plans]:
    raise AssertionError(f"nothing should be built, got {requests}")


def everything_under(folder: Path) -> dict[str, bytes]:
    paths = sorted(Path(top) / name for top, _, names in os.walk(folder, followlinks=True) for name in names)
    # A server that runs has a socket there.
    files = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_is_loaded_of_a_generated_repository_needs_plans(repository: Path) -> None:
    needed = {request.model: request for request in plans_needed(repository)}
    assert sorted(needed) == ["classify_fused", "classify_model"]
    assert needed["classify_model"].postprocess is None
    assert json.loads(needed["classify_fused"].postprocess or "")["top_k"] == 5
    for name, request in needed.items():
        config = from_text((repository / name / "config.pbtxt").read_text())
        assert request.max_batch_size == config.max_batch_size
        assert request.network == repository / name / "1" / "model.onnx"
        assert (request.version, request.precision, request.gpus) == ("1", "fp32", ())
    loaded = {
        "classify": ["classify_model"],
        "classify_fused": ["classify_fused"],
        "classify_preprocess": [],
        "no_such_model": [],
    }
    for model, names in loaded.items():
        assert [request.model for request in plans_needed(repository, [model])] == names


def edited(repository: Path, copy: Path, model: str, **gpu: object) -> Path:
    """The repository with other GPU options in one model's configuration."""
    for name in ("classify_model", "classify_fused"):
        (copy / name / "1").mkdir(parents=True)
        (copy / name / "1" / "model.onnx").symlink_to(repository / name / "1" / "model.onnx")
        config = from_text((repository / name / "config.pbtxt").read_text())
        if name == model:
            parameter = config.parameters["gpu"]
            parameter.string_value = json.dumps({**json.loads(parameter.string_value), **gpu})
        (copy / name / "config.pbtxt").write_text(to_text(config, source="a test"))
    return copy


def test_precision_engine_and_gpus_are_the_configurations(repository: Path, tmp_path: Path) -> None:
    half = plans_needed(edited(repository, tmp_path / "half", "classify_model", precision="fp16"))
    precisions = {request.model: request.precision for request in half}
    assert precisions == {"classify_fused": "fp32", "classify_model": "fp16"}
    other = plans_needed(edited(repository, tmp_path / "other", "classify_fused", engine="onnxruntime"))
    assert [request.model for request in other] == ["classify_model"]
    chosen = edited(repository, tmp_path / "chosen", "")
    path = chosen / "classify_model" / "config.pbtxt"
    path.write_text(path.read_text().replace("kind: KIND_GPU", "kind: KIND_GPU gpus: [1, 3]"))
    gpus = {request.model: request.gpus for request in plans_needed(chosen)}
    assert gpus == {"classify_fused": (), "classify_model": (1, 3)}
    newer = edited(repository, tmp_path / "newer", "classify_model", antigravity=True)
    with pytest.raises(ModelLoadFailed, match=r"'classify_model' failed to load: its parameter 'gpu' .*antigravity"):
        plans_needed(newer)


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ("{{{", ()),
        ('name: "own" backend: "python"', ("model.py",)),
        ('name: "own" platform: "tensorrt_plan"', ("model.plan",)),
        ('name: "own" platform: "tensorrt_plan"', ("model.plan", "model.onnx")),
    ],
    ids=["unreadable, which Triton tells", "no TensorRT", "of somebody else", "of somebody else with its network"],
)
def test_what_needs_no_plan_of_ours_is_served_as_it_is(tmp_path: Path, config: str, files: tuple[str, ...]) -> None:
    model = tmp_path / "repository" / "own"
    (model / "1").mkdir(parents=True)
    for name in files:
        (model / "1" / name).write_bytes(b"my own")
    (model / "config.pbtxt").write_text(config)
    assert fit_plans(tmp_path / "repository", tmp_path / "view", build=no_build) == tmp_path / "repository"
    assert not (tmp_path / "view").exists()


@pytest.mark.slow
def test_the_view_is_the_repository_with_plans_from_the_cache(repository: Path, tmp_path: Path, cache: Path) -> None:
    lines: list[str] = []
    before = everything_under(repository)
    view = fit_plans(repository, tmp_path / "view", progress=lines.append, build=for_ada)
    assert view == tmp_path / "view"
    after = everything_under(view)
    plan = after.pop("classify_model/1/model.plan")
    in_folders = {path: content for path, content in before.items() if "/" in path}
    assert {path: after[path] for path in in_folders} == in_folders
    assert everything_under(repository) == before
    assert (view / "classify_model" / "1" / "model.plan").resolve().parent == cache
    assert plan[:4] == b"vtrt"
    assert not (view / "classify_fused" / "1" / "model.plan").exists()
    built = [line.split(":")[0] for line in lines if "building a TensorRT plan" in line]
    assert built == ["classify_fused", "classify_model"]
    # The next start finds both, and the fused form its own in the cache.
    lines.clear()
    fit_plans(repository, tmp_path / "again", progress=lines.append, build=for_ada)
    assert fit_plans(repository, tmp_path / "fused", models=["classify_fused"], build=for_ada) == repository
    (request,) = plans_needed(repository, ["classify_fused"])
    content = fused_network(repository / "classify_fused" / "1" / "model.onnx", request.postprocess)
    options = PlanOptions(max_batch_size=request.max_batch_size)
    assert ensure_plan(content, options, gpu=GpuKind(ADA, ""), progress=lines.append).parent == cache
    assert lines == []


@pytest.mark.parametrize(
    ("capabilities", "files", "named"),
    [
        (["9.0"], {"model.plan": "9.0"}, {}),
        (
            ["8.9", "9.0"],
            {"model-8.9.plan": "8.9", "model-9.0.plan": "9.0"},
            {"8.9": "model-8.9.plan", "9.0": "model-9.0.plan"},
        ),
    ],
)
def test_where_gpus_differ_triton_is_told_which_plan_is_whose(
    repository: Path, tmp_path: Path, capabilities: list[str], files: dict[str, str], named: dict[str, str]
) -> None:
    built = {capability: tmp_path / capability for capability in capabilities}
    for capability, path in built.items():
        path.write_text(capability)
    view = fit_plans(repository, tmp_path / "view", build=lambda requests, *_: [built] * len(requests))
    model = view / "classify_model"
    assert {path.name: path.read_text() for path in (model / "1").glob("*.plan")} == files
    config = from_text((model / "config.pbtxt").read_text())
    assert dict(config.cc_model_filenames) == named
    config.ClearField("cc_model_filenames")
    assert config == from_text((repository / "classify_model" / "config.pbtxt").read_text())
    assert (model / "1" / "model.py").exists()


def test_a_stale_plan_of_the_repository_is_never_seen(repository: Path, tmp_path: Path) -> None:
    folder = edited(repository, tmp_path / "repository", "")
    (folder / "classify_model" / "1" / "model.plan").write_bytes(b"of another GPU")
    (tmp_path / "new.plan").write_bytes(b"of this GPU")
    built = {"8.9": tmp_path / "new.plan"}
    view = fit_plans(folder, tmp_path / "view", models=["classify_model"], build=lambda *_: [built])
    assert (view / "classify_model" / "1" / "model.plan").read_bytes() == b"of this GPU"
    assert (folder / "classify_model" / "1" / "model.plan").read_bytes() == b"of another GPU"


@pytest.fixture
def network(repository: Path) -> Path:
    return repository / "classify_model" / "1" / "model.onnx"


def request_for(network: Path, **fields: object) -> PlanRequest:
    usual = {"model": "m", "version": "1", "network": network, "max_batch_size": 4, "compute_capability": ADA}
    return PlanRequest(**usual | fields)


@pytest.mark.usefixtures("cache")
def test_a_network_that_cannot_be_built_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"GIF89a")
    with pytest.raises(ModelLoadFailed, match=r"^model 'm' failed to load: not an ONNX file"):
        build_apart([request_for(tmp_path / "model.onnx")], print, lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_a_gpu_that_cannot_be_built_for_names_its_model(network: Path) -> None:
    good, bad = request_for(network, model="good"), request_for(network, model="bad", compute_capability=(9, 0))
    with pytest.raises(ModelLoadFailed, match=r"^model 'bad' failed to load: .*; got 9\.0"):
        build_apart([good, bad], print, lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_a_builder_that_crashes_takes_nothing_with_it(network: Path) -> None:
    others = psutil.Process().children()

    def kill(_line: str) -> None:
        for child in set(psutil.Process().children()) - set(others):
            child.kill()

    with pytest.raises(ModelLoadFailed, match=r"model 'm' failed to load: the TensorRT build was killed \(SIGKILL\)"):
        build_apart([request_for(network)], kill, lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_a_stop_ends_the_build(network: Path) -> None:
    lines: list[str] = []
    others = psutil.Process().children()
    with pytest.raises(StopRequested):
        build_apart([request_for(network)] * 3, lines.append, lambda: bool(lines))
    assert set(psutil.Process().children()) <= set(others)


@pytest.mark.needs_triton
@pytest.mark.skipif(driver_visible(), reason="about a machine without a GPU")
def test_a_server_says_why_it_has_no_plan_and_leaves_nothing(repository: Path, tmp_path: Path, cache: Path) -> None:
    own = f"onestream-*-{os.getpid()}-*"
    folders = set(Path(tempfile.gettempdir()).glob(own))
    server = Server(repository, **FREE_PORTS, device="gpu", models=["classify_model"], log_path=tmp_path / "log")
    with pytest.raises(ModelLoadFailed, match=r"'classify_model' failed .* Triton's TensorRT backend loads plans of"):
        server.start()
    assert (tmp_path / "log").read_bytes() == b"", "it is told before Triton starts"
    assert set(Path(tempfile.gettempdir()).glob(own)) == folders
    assert not cache.exists()
