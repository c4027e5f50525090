"""The programs and commands of docs/overload.md run, and its options are the defaults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from onestream.serving.pipeline import ServingOptions
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "overload.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_the_options_are_shown_with_their_defaults() -> None:
    (shown,) = blocks("yaml")
    fields = yaml.safe_load(shown)["serving"]
    assert fields.keys() == {"max_queue_size", "max_queue_ms", "gpu"}
    assert ServingOptions.model_validate(fields) == ServingOptions()


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_programs_and_commands_run(server: Server, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = tmp_path / "bin" / "onestream"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m onestream "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    overload, urgent = [block.replace("127.0.0.1:8001", server.grpc_address) for block in blocks("python")]
    ended = dict(re.findall(r"'([a-z ]+)': (\d+)", run(sys.executable, "-c", overload)))
    assert sum(map(int, ended.values())) == 600
    assert int(ended["answered"]) > 0
    assert int(ended["refused"]) > 0
    assert run(sys.executable, "-c", urgent) == "espresso\n"

    bulk, watch = (block.splitlines() for block in blocks("bash"))
    assert (len(bulk), len(watch)) == (2, 2)
    for line in bulk:
        run("bash", "-c", f"set -o pipefail; {line.partition('#')[0]} --url {server.grpc_address}")
    photos = len(list((ROOT / "examples" / "photos").glob("*.jpg")))
    for name in ("labels.csv", "urgent.csv"):
        assert (tmp_path / name).read_text().count("espresso") == 1
        assert (tmp_path / name).read_text().count("\n") == 1 + photos
    counted, top = watch
    found = run("bash", "-c", counted.replace("http://127.0.0.1:8002/metrics", server.metrics_url))
    assert 'nv_inference_pending_request_count{model="classify_fused"' in found
    for model, reason in (("classify", "OTHER"), ("classify_model", "REJECTED"), ("classify_fused", "REJECTED")):
        assert f'nv_inference_request_failure{{model="{model}",reason="{reason}"' in found
    assert "classify_fused" in run("bash", "-c", f"{top} --metrics-url {server.metrics_url}")
