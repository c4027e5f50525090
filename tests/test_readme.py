"""The README's commands do what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onestream.serving.server.server import Server

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def at(server: Server, text: str) -> str:
    """The text with a test server's addresses."""
    return text.replace("127.0.0.1:8001", server.grpc_address).replace("127.0.0.1:8000", server.http_address)


@pytest.mark.needs_triton
def test_python_blocks_run(server: Server) -> None:
    found = blocks("python")
    assert len(found) == 4
    printed = []
    for block in found:
        command = [sys.executable, "-c", at(server, block)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0].startswith("espresso 0.95")
    assert "1 unsupported_format" in printed[0]
    assert printed[1].endswith("True\n")
    assert printed[2] == "['class_ids', 'labels', 'scores']\n"
    assert printed[3].startswith("(4, 3, 224, 224) [")


def test_python_blocks_of_the_training_page_run() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == 2
    printed = []
    for block in found:
        done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0].endswith("2 batches, exactly what serving computes\n")
    assert printed[1] == "torch.Size([3, 224, 224])\n"


@pytest.mark.needs_triton
def test_curl_line_runs(server: Server) -> None:
    (block,) = (block for block in blocks("bash") if "| curl" in block)
    done = subprocess.run(at(server, block), shell=True, cwd=ROOT, capture_output=True, timeout=60, check=True)
    labels = next(output["data"] for output in json.loads(done.stdout)["outputs"] if output["name"] == "labels")
    # Of three letters, too.
    assert labels[:2] == ["espresso", "cup"]


@pytest.mark.needs_triton
def test_classify_lines_run(server: Server) -> None:
    for arguments in (["examples/photos"], ["--json", "examples/photos/cat.jpg"]):
        command = [sys.executable, "-m", "onestream", "classify", "--url", server.grpc_address, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "cat" in done.stdout


def test_the_pipeline_shown_is_the_pipeline_served() -> None:
    from onestream.serving.pipeline import Pipeline

    (shown,) = blocks("yaml")
    file = ROOT / "pipelines" / "classify.yaml"
    served = Pipeline.from_file(file)
    import yaml

    assert Pipeline.model_validate({"name": "classify", **yaml.safe_load(shown)}) == served


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
