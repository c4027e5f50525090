"""How many workers a cluster has room for, and what is refused before anything is done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cascades
import pytest
from builds import build
from patience import PATIENCE_S
from ray_clusters import ROOT
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.preprocess import StampMismatch
from onestream.serving.errors import BadPipeline

pytest.importorskip("ray")

import ray

from onestream.cli.bulk.ray.run import NoRoom, Workers
from onestream.cli.bulk.ray.sent_model import SentModel, built_model, digest_of, files_of

HEAD = {"CPU": 0.0}
SMALL = {"CPU": 8.0, "memory": 1e9}
LARGE = {"CPU": 32.0, "GPU": 4.0}
BARE = {"memory": 1e9}


def have(monkeypatch: pytest.MonkeyPatch, *machines: dict[str, float], lost: dict[str, float] | None = None) -> None:
    """Let the cluster have these machines, and one that it lost."""
    nodes: list[dict[str, Any]] = [{"Alive": True, "Resources": machine} for machine in machines]
    if lost is not None:
        nodes.append({"Alive": False, "Resources": lost})
    monkeypatch.setattr(ray, "nodes", lambda: nodes)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (Workers(), 2 * 8 + 32),
        (Workers(cpus=3), 2 * 2 + 10),
        (Workers(cpus=0.5), 2 * 16 + 64),
        (Workers(cpus=12), 2),
        (Workers(gpus=1), 4),
        (Workers(gpus=0.5), 8),
        (Workers(gpus=0.1), 32),
        (Workers(cpus=0.5, gpus=0.1), 40),
        # Two shares of 0.4 fit on a GPU, and what is left of two GPUs is no third one.
        (Workers(gpus=0.4), 8),
        (Workers(gpus=0.7), 4),
        (Workers(cpus=16, gpus=1), 2),
        (Workers(count=3), 3),
        (Workers(gpus=1, count=100), 100),
    ],
)
def test_there_are_as_many_as_fit_on_machines(monkeypatch: pytest.MonkeyPatch, workers: Workers, expected: int) -> None:
    have(monkeypatch, HEAD, SMALL, SMALL, LARGE, BARE, lost=LARGE)
    assert workers.most() == expected
    assert workers.device == ("gpu" if workers.gpus else "cpu")


@pytest.mark.parametrize(
    ("workers", "asked"),
    [
        (Workers(gpus=0.5), "1 CPU and 0.5 GPU"),
        (Workers(gpus=1, count=2), "1 CPU and 1 GPU"),
        (Workers(cpus=9), "9 CPU and 0 GPU"),
    ],
)
def test_what_fits_on_no_machine_is_refused_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch, workers: Workers, asked: str
) -> None:
    have(monkeypatch, HEAD, SMALL, SMALL, lost=LARGE)
    there_are = "there are 2 with 8 CPU and 0 GPU, 1 with 0 CPU and 0 GPU"
    with pytest.raises(NoRoom, match=f"has the {asked} that a worker was to reserve; {there_are}"):
        workers.most()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"gpus": 1.5}, "got 1.5 GPUs for each worker; expected 0 to 1"),
        ({"gpus": -1}, "got -1 GPUs for each worker; expected 0 to 1"),
        ({"gpus": float("nan")}, "got nan GPUs"),
        ({"cpus": 0}, "got 0 CPUs for each worker; expected more than 0"),
    ],
)
def test_numbers_that_no_worker_can_have_are_refused(numbers: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Workers(**numbers)


NOT_WITH_A_SERVER = "--gpus-per-worker is for the pipeline in the workers; with --url the server has it"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ray", "--url", "127.0.0.1:1", "--gpus-per-worker", "1"], NOT_WITH_A_SERVER),
        (["--ray-address", "ray://head:10001"], "on one of them give HOST:PORT of the head"),
        (["--ray-address", "127.0.0.1:1"], "no Ray at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_begun_says_why(
    monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path, options: list[str], words: str
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    command = ["bulk", "cat.jpg", "--to", str(tmp_path / "out"), "--repository", str(repository), *options]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "out").exists()


def test_without_ray_a_program_and_the_command_name_the_extras(tmp_path: Path) -> None:
    """``ray`` alone is not enough, since the pipeline runs in the workers."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for program in (["-c", "import onestream.ray"], ["-m", "onestream", "bulk", "cat.jpg", "--ray", "--to", "out"]):
        command = [sys.executable, *program]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode in (1, 2)
        assert "pip install -e '.[cpu,ray]'" in " ".join(done.stderr.split())


def test_a_pipeline_that_is_built_for_cpus_alone_is_no_worker_s_on_a_gpu(tmp_path: Path) -> None:
    networks = cascades.write_things(tmp_path, **cascades.SHARED)
    build(tmp_path / "things.yaml", folder=tmp_path / "models", onnx_files=networks)
    assert built_model("things", tmp_path / "models").name == "things_fused"
    for pipeline in ("things", tmp_path / "things.yaml"):
        with pytest.raises(BadPipeline, match="things_fused is built for CPUs alone"):
            built_model(pipeline, tmp_path / "models", "gpu")


def test_workers_that_begin_together_find_the_model_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"1/model.onnx": b"network" * 1000, "definition.json": b"{}"}
    monkeypatch.setenv("ONESTREAM_CACHE", str(tmp_path))
    asked: list[object] = []

    def slowly(reference: object) -> dict[str, bytes]:
        asked.append(reference)
        time.sleep(0.2)  # so that all others come meanwhile
        return files

    monkeypatch.setattr(ray, "get", slowly)
    model: Any = SentModel("classify_fused", digest_of(files), None)  # type: ignore[arg-type]

    def begin(_: int) -> dict[str, bytes]:
        return files_of(model.folder_here())

    with ThreadPoolExecutor(8) as workers:
        assert list(workers.map(begin, range(8))) == [files] * 8
    assert len(asked) == 1
    # One that lacks a file, as after a crash of the machine, is put there anew.
    (model.folder_here() / "definition.json").unlink()
    assert begin(0) == files


def test_a_file_that_is_not_what_was_built_is_refused(repository: Path, tmp_path: Path) -> None:
    changed = tmp_path / "classify.yaml"
    shutil.copy(ROOT / "pipelines" / "classify.yaml", changed)
    assert built_model(changed, repository) == repository / "classify_fused"
    assert built_model("classify", repository) == built_model("classify_fused", repository)
    changed.write_text(changed.read_text().replace("size: 256", "size: 255"))
    with pytest.raises(StampMismatch, match="first difference"):
        built_model(changed, repository)
    with pytest.raises(BadPipeline, match="has no other_fused; build it with onestream build"):
        built_model("other", repository)
    with pytest.raises(BadPipeline, match="classify is not built in"):
        built_model(ROOT / "pipelines" / "classify.yaml", tmp_path)
