"""The doctor on this machine, and on machines that lack things."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import Result
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server import doctor as doctor_module
from onestream.serving.server.doctor import Check, run_checks
from onestream.serving.server.triton import health


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A repository that looks built."""
    folder = tmp_path / "repository" / "classify_model"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").touch()
    (folder / "1" / "model.onnx").touch()
    return folder.parent


def look_at(name: str, repository: Path, *, ports: tuple[int, ...] = (0,)) -> Check:
    (check,) = run_checks(repository=repository, ports=ports, only={name})
    return check


def doctor(*arguments: str) -> Result:
    """The command's outcome, as a terminal of 40 columns shows it."""
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "40"})


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_machine_that_can_serve_has_no_problem(built: Path) -> None:
    ended = doctor("--json", f"--repository={built}")
    report = json.loads(ended.stdout)
    assert [check for check in report["checks"] if check["status"] == "problem"] == []
    assert report["ok"] is True
    assert ended.exit_code == 0
    names = {check["name"] for check in report["checks"]}
    assert names >= {"Python", "glibc", "numpy", "Triton", "Python backend", "libpython", "DALI", "ONNX Runtime"}
    assert names >= {"ONNX", "tritonclient", "NVIDIA driver", "CUDA libraries", "shared memory", "cores", "ports"}
    assert all(check["fix"] for check in report["checks"] if check["status"] != "ok")


def test_a_missing_repository_is_a_problem_with_its_command(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a network that is not built."""
    (built / "classify_model" / "1" / "model.onnx").unlink()
    check = look_at("model repository", built)
    assert (check.status, check.fix) == ("problem", "onestream build pipelines/classify.yaml")
    assert "not built" in check.found
    only = functools.partial(run_checks, only={"cores", "model repository"})
    monkeypatch.setattr(doctor_module, "run_checks", only)
    ended = doctor(f"--repository={built / 'nowhere'}")
    assert ended.exit_code == 1
    lines = ended.stdout.splitlines()
    problem = next(number for number, line in enumerate(lines) if "model repository" in line)
    assert lines[problem].startswith("problem ")
    assert lines[problem + 1].endswith("→ onestream build pipelines/classify.yaml")
    assert ended.stderr == ""


def test_nothing_installed_gives_problems_and_no_crash(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(metadata, "version", not_installed)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    checks = {check.name: check for check in run_checks(repository=built)}
    for name in ("Triton", "DALI", "ONNX Runtime", "ONNX", "tritonclient"):
        assert (checks[name].status, checks[name].fix) == ("problem", "pip install -e '.[cpu]' in onestream's checkout")
    assert "numpy>=1.26,<2" in checks["numpy"].fix
    assert checks["bash"].status == "problem"
    assert checks["perf_analyzer"].status == "optional"
    assert checks["Python"].status == "ok"


def test_packages_of_the_same_files_are_a_problem(built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("onnxruntime", "onnxruntime_gpu"):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        (about / "RECORD").write_text("onnxruntime/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    check = look_at("ONNX Runtime", built)
    assert check.status == "problem"
    assert check.found.startswith("onnxruntime 1.0, onnxruntime-gpu 1.0 hold the same files")
    assert "pip uninstall onnxruntime onnxruntime-gpu" in check.fix


def test_a_python_without_an_embedded_triton_is_a_problem(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "tritonserver" else on_path(name, **more))
    monkeypatch.setattr(health, "EMBEDDED_PYTHONS", ((3, 8), (3, 9)))
    check = look_at("Python", built)
    assert check.status == "problem"
    assert check.found.endswith("3.8 to 3.9 are supported by the embedded Triton")
    assert check.fix == "python3.9 -m venv .venv && .venv/bin/pip install -e '.[cpu]' in onestream's checkout"
    monkeypatch.setenv("PATH", str(built), prepend=os.pathsep)
    triton = built / "tritonserver"
    triton.write_text("#!/bin/sh\n")
    triton.chmod(0o755)
    monkeypatch.setattr(shutil, "which", on_path)
    assert look_at("Python", built).status == "ok", "another Triton may be for it"


def test_a_check_that_fails_unexpectedly_is_a_problem(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> NoReturn:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    said = "the check failed: PermissionError: not here"
    assert look_at("cores", built) == Check(name="cores", status="problem", found=said)


@pytest.mark.needs_triton
def test_numpy_2_is_a_problem(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.1.0" if name == "numpy" else installed(name))
    check = look_at("numpy", built)
    assert check.status == "problem"
    assert "wrong values" in check.found


def test_a_busy_port_is_named(built: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        check = look_at("ports", built, ports=(port,))
        assert check.status == "optional"
        assert str(port) in check.found
    assert look_at("ports", built, ports=(port,)).status == "ok"


def test_too_little_shared_memory_is_a_problem(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(total=64 * 2**20, free=60 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    check = look_at("shared memory", built)
    assert check.status == "problem"
    assert "60 MB free of 64 MB" in check.found
    assert "--shm-size" in check.fix


@pytest.mark.parametrize(
    ("memory", "arguments", "said"),
    [(True, True, []), (False, True, ["regions"]), (True, False, ["token"]), (False, False, ["regions", "token"])],
)
def test_what_other_users_see_is_said(
    built: Path, monkeypatch: pytest.MonkeyPatch, memory: bool, arguments: bool, said: list[str]
) -> None:
    monkeypatch.setattr("onestream.serving.server.doctor.private_memory_allowed", lambda: memory)
    monkeypatch.setattr("onestream.serving.server.doctor.arguments_can_be_hidden", lambda: arguments)
    check = look_at("other users", built)
    assert check.status == ("optional" if said else "ok")
    assert all(word in check.found for word in said)


def test_a_backend_of_another_python_is_a_problem(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = tmp_path / "opt" / "bin" / "tritonserver"
    stub = tmp_path / "opt" / "backends" / "python" / "triton_python_backend_stub"
    for file, text in ((executable, "#!/bin/sh\n"), (stub, "#!/bin/sh\n# libpython2.7.so.1.0\n")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(executable.parent), prepend=os.pathsep)
    assert look_at("Triton", built).status == "ok"
    check = look_at("Python backend", built)
    assert check.status == "problem"
    assert "is for another Python" in check.found


@pytest.mark.needs_triton
def test_a_triton_without_a_library_is_a_problem(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onestream.serving.server.triton.installation import find_triton

    shutil.copy(find_triton().executable, tmp_path / "tritonserver")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    check = look_at("Triton", built)
    assert check.status == "problem"
    assert "lacks lib" in check.found


def test_the_commands_import_nothing_heavy() -> None:
    code = (
        "import sys, onestream.cli.serve.command, onestream.cli.doctor, onestream.serving.server.doctor\n"
        "heavy = {'numpy', 'tritonclient', 'grpc', 'onnx', 'onnxruntime', 'nvidia', 'pytriton', 'torch'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
