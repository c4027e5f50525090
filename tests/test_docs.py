"""What the pages say exists: links lead somewhere, files are there, programs and commands run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onestream.serving.pipeline_page import anchor
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[1]
LINKED_ROOMS = ROOT / "onestream"
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not path.is_relative_to(LINKED_ROOMS)
    and not any(part.startswith(".") or part in ("build", "runs") for part in path.relative_to(ROOT).parts)
)


def without_code(text: str) -> str:
    """A page without its fenced blocks, in which # and [] mean something else."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    text = without_code(path.read_text(encoding="utf-8"))
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_their_anchors_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        target, _, fragment = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        path = page.parent / target if target else page
        assert path.exists(), link
        if fragment:
            assert fragment in anchors(path), link


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index, page.name


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_and_folders_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text)) - {"1/model.py"}
    assert len(named) > 5
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_order_of_the_rooms_is_the_tested_one() -> None:
    from test_rooms import ROOMS

    order = " ──► ".join(ROOMS)
    assert order in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_installs_from_an_index_that_lacks_the_name(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"pip install '?onestream(?!(\[[\w,]+\])? @ git\+URL')", text) == []


def test_the_programs_of_the_definition_page_run_one_after_the_other() -> None:
    program = "\n".join(blocks("docs/definition.md", "python"))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"print\(.*# (?:.*: )?(.+)", program)
    assert done.stdout.splitlines()[1:] == shown


@pytest.mark.needs_triton
def test_the_program_of_the_client_page_runs(server: Server) -> None:
    (program,) = blocks("docs/client.md", "python")
    program = program.replace("127.0.0.1:8001", server.grpc_address)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['class_ids', 'labels', 'scores']\n"


@pytest.mark.needs_triton
def test_the_curl_recipe_prints_json(server: Server) -> None:
    """Every label whole, also the shortest: ImageNet has *ox*."""
    (recipe,) = (block for block in blocks("docs/client.md", "bash") if "curl" in block)
    recipe = recipe.replace("127.0.0.1:8000", server.http_address)
    done = subprocess.run(["bash", "-c", recipe], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    outputs = {output["name"]: output["data"] for output in json.loads(done.stdout)["outputs"]}
    assert outputs["labels"][0] == "espresso"
    assert len(outputs["labels"]) == len(outputs["scores"]) == len(outputs["class_ids"]) == 5


def test_the_pipeline_shown_is_the_pipeline_served() -> None:
    import yaml

    from onestream.serving.pipeline import Pipeline

    (shown,) = blocks("docs/own-network.md", "yaml")
    served = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    assert Pipeline.model_validate({"name": "classify", **yaml.safe_load(shown)}) == served
