"""The scripts that run inside the images."""

from __future__ import annotations

import base64
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from ctypes.util import find_library
from importlib import util
from pathlib import Path

import pytest
from http_answers import answering
from resolved_compose import ROOT
from shared_server import SharedServer

PHOTOS = ROOT / "examples" / "photos"


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # -I: the scripts get along without the project's packages and without the caller's environment.
    command = [sys.executable, "-I", "-S", str(ROOT / "deploy" / script), *arguments]
    environment["PATH"] = "/usr/sbin:/sbin:/usr/bin:/bin"
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


Here = Callable[..., tuple[object, str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs a script in this process; gives its exit code, which may be a text for standard error, and its output."""

    def run_here(script: str, *arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        code: object = 0
        try:
            runpy.run_path(str(ROOT / "deploy" / script), run_name="__main__")
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().out

    return run_here


@pytest.mark.needs_triton
def test_only_a_server_that_classifies_a_photo_is_healthy(server: SharedServer, tmp_path: Path, here: Here) -> None:
    # The loopback address is asked without the proxy.
    options = ("--url", server.http_url, "--infer", "classify_fused", "--timeout-s", "30")
    done = run("healthcheck.py", *options, http_proxy="http://127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    absent, _ = here("healthcheck.py", "--url", server.http_url, "--infer", "absent")
    assert "/v2/models/absent/infer answers 4" in str(absent)
    (tmp_path / "no.jpg").write_bytes(b"not an image")
    bad = ("--infer", "classify", "--photo", str(tmp_path / "no.jpg"))
    code, _ = here("healthcheck.py", "--url", server.http_url, *bad)
    assert "/v2/models/classify/infer answers 400" in str(code)


def test_no_server_and_one_that_is_not_ready_are_unhealthy(here: Here) -> None:
    with answering(lambda *_: (400, b"")) as address:
        url = f"http://{address}"
        assert here("healthcheck.py", "--url", url) == (f"not ready: {url}/v2/health/ready answers 400", "")
    code, _ = here("healthcheck.py", "--url", "http://127.0.0.1:1")
    assert str(code).startswith("no answer from http://127.0.0.1:1/v2/health/ready: ")
    code, _ = here("healthcheck.py", "--infer", "classify", "--photo", "/absent.jpg")
    assert code == "cannot read /absent.jpg: No such file or directory"


def test_the_load_generator_sends_every_photo_and_passes_the_rest_on(tmp_path: Path, here: Here) -> None:
    stand_in = tmp_path / "perf_analyzer"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    with answering(lambda *_: (200, b"")) as address:
        done = run(
            "bench.py",
            *("--http-port", address.partition(":")[2], "--grpc-port", "7", "--photos", str(PHOTOS)),
            *("-m", "classify", "--concurrency-range", "1:2:1", "--", "--percentile", "95"),
            PERF_ANALYZER=str(stand_in),
            TMPDIR=str(tmp_path),
        )
    assert done.returncode == 0, done.stderr
    said, *arguments = done.stdout.splitlines()
    assert said.startswith("6 images of ")
    sent = arguments.pop(arguments.index("--input-data") + 1)
    assert arguments == [
        *("-m", "classify", "-i", "grpc", "-u", "127.0.0.1:7", "--input-data"),
        *("--concurrency-range", "1:2:1", "--percentile", "95"),
    ]
    requests = json.loads(Path(sent).read_text())["data"]
    for one, path in zip(requests, sorted(PHOTOS.glob("*.jpg")), strict=True):
        content = path.read_bytes()
        assert one == {"image": {"content": {"b64": base64.b64encode(content).decode()}, "shape": [len(content)]}}
    assert here("bench.py", "--photos", str(PHOTOS), "--write", str(tmp_path / "photos.json"))[0] in (0, None)
    assert json.loads((tmp_path / "photos.json").read_text())["data"] == requests


def test_the_load_generator_says_what_keeps_it(tmp_path: Path, here: Here) -> None:
    with answering(lambda *_: (400, b"")) as address:
        port = address.partition(":")[2]
        code, _ = here("bench.py", "--http-port", port, "--photos", str(PHOTOS), "--wait-s", "0.1")
    assert "was not ready within 0.1 s" in str(code)
    code, _ = here("bench.py", "--photos", str(tmp_path))
    assert str(code).startswith(f"no images in {tmp_path}; expected names that end in .bmp, .jpeg,")
    assert here("bench.py", "--photos", str(PHOTOS), "--concurency-range", "1:2:1")[0] == 2


def test_tensorrt_s_bindings_are_those_of_the_library(here: Here) -> None:
    """With TensorRT for RTX in the place of TensorRT: it has the same functions and comes as a wheel."""
    package = util.find_spec("tensorrt_rtx_libs")
    (library,) = Path(package.origin).parent.glob("libtensorrt_rtx.so.*")
    done = run("tensorrt_bindings.py", str(library))
    assert done.stdout == "tensorrt-cu13==1.7.1.* tensorrt-cu13-bindings==1.7.1.*\n", done.stderr
    code, out = here("tensorrt_bindings.py", "libm.so.6")
    assert str(code).startswith("libm.so.6 is not a TensorRT library: ")
    assert out == ""


@pytest.mark.skipif(find_library("nvinfer") is not None, reason="this machine has TensorRT")
def test_without_tensorrt_a_server_is_told_what_to_do_and_a_test_is_told_none(here: Here) -> None:
    code, out = here("tensorrt_bindings.py")
    assert str(code).startswith("no TensorRT (libnvinfer.so) on this machine; install in Triton's container")
    assert out == ""
    assert here("tensorrt_bindings.py", "--if-there") == (0, "none\n")


def test_every_loop_is_compiled_at_the_build() -> None:
    found = set(runpy.run_path(str(ROOT / "deploy" / "compile_loops.py"))["modules"]())
    packages = [path.resolve() for path in (ROOT / "onestream").iterdir() if path.is_symlink()]
    sources = [path for package in packages for path in package.rglob("*.py") if "\n@compiled(" in path.read_text()]
    used = {".".join(("onestream", *path.relative_to(ROOT).with_suffix("").parts)) for path in sources}
    assert found == used
    assert "onestream.preprocess.cpu.resample" in found
