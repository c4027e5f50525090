"""The scripts that run inside the images."""

from __future__ import annotations

import base64
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from http import HTTPStatus
from importlib import util
from pathlib import Path

import pytest
from resolved_compose import ROOT

from onestream.serving.server.server import Server

PHOTOS = ROOT / "examples" / "photos"


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # -I: the scripts get along without the project's packages and without the caller's environment.
    return subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "deploy" / script), *arguments],
        env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def answering(status: HTTPStatus) -> Iterator[int]:
    """A port of a server that gives every request the same status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.needs_triton
def test_a_server_whose_models_answer_is_healthy(server: Server) -> None:
    done = run("healthcheck.py", "--url", server.http_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.needs_triton
@pytest.mark.parametrize("pipeline", ["classify", "classify_fused"])
def test_a_server_that_classifies_a_photo_is_healthy(server: Server, pipeline: str) -> None:
    done = run("healthcheck.py", "--url", server.http_url, "--infer", pipeline, "--timeout-s", "30")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.needs_triton
def test_a_server_that_cannot_answer_for_a_photo_is_unhealthy(server: Server, tmp_path: Path) -> None:
    absent = run("healthcheck.py", "--url", server.http_url, "--infer", "absent")
    assert absent.returncode == 1
    assert "/v2/models/absent/infer answers 4" in absent.stderr
    (tmp_path / "no.jpg").write_bytes(b"not an image")
    bad = ("--infer", "classify", "--photo", str(tmp_path / "no.jpg"))
    assert "/v2/models/classify/infer answers 400" in run("healthcheck.py", "--url", server.http_url, *bad).stderr
    nothing = run("healthcheck.py", "--infer", "classify", "--photo", str(tmp_path / "absent.jpg"))
    assert nothing.returncode == 1
    assert nothing.stderr == f"cannot read {tmp_path / 'absent.jpg'}: No such file or directory\n"


@pytest.mark.needs_triton
def test_the_loopback_address_is_asked_without_a_proxy(server: Server) -> None:
    assert run("healthcheck.py", "--url", server.http_url, http_proxy="http://127.0.0.1:1").returncode == 0


def test_a_server_that_is_not_ready_is_unhealthy() -> None:
    with answering(HTTPStatus.BAD_REQUEST) as port:
        done = run("healthcheck.py", "--url", f"http://127.0.0.1:{port}")
    assert done.returncode == 1
    assert done.stderr == f"not ready: http://127.0.0.1:{port}/v2/health/ready answers 400\n"


def test_no_server_is_unhealthy() -> None:
    done = run("healthcheck.py", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("no answer from http://127.0.0.1:1/v2/health/ready: ")
    assert done.stderr.count("\n") == 1


def test_the_load_generator_sends_every_photo_and_passes_the_rest_on(tmp_path: Path) -> None:
    stand_in = tmp_path / "perf_analyzer"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    with answering(HTTPStatus.OK) as port:
        done = run(
            "bench.py",
            *("--http-port", str(port), "--grpc-port", "7", "--photos", str(PHOTOS)),
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
    sizes = [request["image"]["shape"] for request in requests]
    assert sizes == [[path.stat().st_size] for path in sorted(PHOTOS.glob("*.jpg"))]


def test_the_load_generator_refuses_options_that_it_does_not_know() -> None:
    done = run("bench.py", "--photos", str(PHOTOS), "--concurency-range", "1:2:1")
    assert done.returncode == 2
    assert "unrecognized arguments: --concurency-range" in done.stderr


def test_the_load_generator_writes_the_input_data_that_its_page_shows(tmp_path: Path) -> None:
    done = run("bench.py", "--photos", str(PHOTOS), "--write", str(tmp_path / "photos.json"))
    assert done.returncode == 0, done.stderr
    requests = json.loads((tmp_path / "photos.json").read_text())["data"]
    page = (ROOT / "docs" / "load.md").read_text(encoding="utf-8")
    shown = json.loads(page.split("```json\n")[1].split("```")[0])["data"]
    for request in (*requests, *shown):
        assert list(request) == ["image"]
        assert list(request["image"]) == ["content", "shape"]
        assert list(request["image"]["content"]) == ["b64"]
        assert len(request["image"]["shape"]) == 1
    assert [len(base64.b64decode(one["image"]["content"]["b64"])) for one in requests] == [
        one["image"]["shape"][0] for one in requests
    ]


def test_the_load_generator_waits_for_the_server_and_gives_up() -> None:
    with answering(HTTPStatus.BAD_REQUEST) as port:
        done = run("bench.py", "--http-port", str(port), "--photos", str(PHOTOS), "--wait-s", "0.1")
    assert done.returncode == 1
    assert "was not ready within 0.1 s" in done.stderr


def test_the_load_generator_names_a_folder_without_images(tmp_path: Path) -> None:
    done = run("bench.py", "--photos", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"no images in {tmp_path}; expected names that end in .bmp, .jpeg,")


def test_tensorrt_s_bindings_are_those_of_the_library() -> None:
    """With TensorRT for RTX in the place of TensorRT: it has the same functions and comes as a wheel."""
    package = util.find_spec("tensorrt_rtx_libs")
    assert package is not None
    assert package.origin is not None
    (library,) = Path(package.origin).parent.glob("libtensorrt_rtx.so.*")
    done = run("tensorrt_bindings.py", str(library))
    assert done.stdout == "tensorrt-cu13==1.7.1.* tensorrt-cu13-bindings==1.7.1.*\n", done.stderr


@pytest.mark.skipif(find_library("nvinfer") is not None, reason="this machine has TensorRT")
def test_without_tensorrt_a_server_is_told_what_to_do_and_a_test_is_told_none() -> None:
    done = run("tensorrt_bindings.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no TensorRT (libnvinfer.so) on this machine; install in Triton's container")
    done = run("tensorrt_bindings.py", "--if-there")
    assert (done.returncode, done.stdout, done.stderr) == (0, "none\n", "")


def test_a_library_that_is_not_tensorrt_is_named() -> None:
    done = run("tensorrt_bindings.py", "libm.so.6")
    assert done.returncode == 1
    assert done.stderr.startswith("libm.so.6 is not a TensorRT library: ")
    assert done.stdout == ""
