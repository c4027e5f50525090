"""The programs and commands of docs/client.md and docs/overload.md run, and the options shown are the defaults."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from pages import ROOT, Shell, blocks
from shared_server import SharedServer

from onestream.serving.pipeline import ServingOptions


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_asyncio_program_runs(server: SharedServer, protocol: str, tmp_path: Path) -> None:
    (program,) = (block for block in blocks("client.md", "python") if "asyncio" in block)
    program = program.replace("127.0.0.1:8001", server.grpc_address if protocol == "grpc" else server.http_url, 1)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell = Shell(tmp_path)
    first, *items = shell.run(sys.executable, "-c", program).splitlines()
    assert shell.complaints == ""
    assert first == "espresso"
    assert [line.split(maxsplit=1)[0] for line in items] == ["0", "1", "2"]
    assert items[1] == "1 unsupported_format"


def test_the_options_of_overload_are_shown_with_their_defaults() -> None:
    (shown,) = blocks("overload.md", "yaml")
    fields = yaml.safe_load(shown)["serving"]
    assert fields.keys() == {"max_queue_size", "max_queue_ms", "gpu"}
    assert ServingOptions.model_validate(fields) == ServingOptions()


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_programs_and_commands_of_overload_run(server: SharedServer, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell = Shell(tmp_path)
    # With more time than the page's, so that on a busy machine too requests are refused and not too late.
    programs = [
        block.replace("127.0.0.1:8001", server.grpc_address).replace("timeout_s=5", "timeout_s=60")
        for block in blocks("overload.md", "python")
    ]
    overload, urgent = (shell.run(sys.executable, "-c", program) for program in programs)
    ended = dict(re.findall(r"'([a-z ]+)': (\d+)", overload))
    assert sum(map(int, ended.values())) == 600
    assert int(ended["answered"]) > 0
    assert int(ended["refused"]) > 0
    assert urgent == "espresso\n"

    bulk, watch = (block.splitlines() for block in blocks("overload.md", "bash"))
    assert (len(bulk), len(watch)) == (2, 2)
    for line in bulk:
        shell.line(f"{line.partition('#')[0]} --url {server.grpc_address}")
    photos = len(list((ROOT / "examples" / "photos").glob("*.jpg")))
    for name in ("labels.csv", "urgent.csv"):
        assert (tmp_path / name).read_text().count("espresso") == 1
        assert (tmp_path / name).read_text().count("\n") == 1 + photos
    counted, top = watch
    found = shell.line(counted.replace("http://127.0.0.1:8002/metrics", server.metrics_url))
    assert 'nv_inference_pending_request_count{model="classify_fused"' in found
    for model, reason in (("classify", "OTHER"), ("classify_model", "REJECTED"), ("classify_fused", "REJECTED")):
        assert f'nv_inference_request_failure{{model="{model}",reason="{reason}"' in found
    assert "classify_fused" in shell.line(f"{top} --metrics-url {server.metrics_url}")
