"""What the pages say exists and works: links lead somewhere, files are there, programs and commands run, each once."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from pages import Shell, blocks, printed_by
from shared_server import SharedServer
from typer.testing import CliRunner

from generators import import_page, pipeline_page
from onestream.cli.main import app
from onestream.preprocess import Definition
from onestream.preprocess.interop.huggingface.families import FAMILIES
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[1]
README = "../README.md"
LIKE_DETECTION = ("InstanceMasks", "Keypoints", "OrientedBoxes")
CONFIG = {
    "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
}  # fmt: skip
"""As the hub has it."""
LINKED_ROOMS = ROOT / "onestream"
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not path.is_relative_to(LINKED_ROOMS)
    and not any(part.startswith(".") or part in ("build", "runs") for part in path.relative_to(ROOT).parts)
)


def page_text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """A page without its fenced blocks, in which # and [] mean something else."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    text = without_code(path.read_text(encoding="utf-8"))
    return {pipeline_page.anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}


def at(server: SharedServer, text: str) -> str:
    """The text with a test server's addresses."""
    return text.replace("127.0.0.1:8001", server.grpc_address).replace("127.0.0.1:8000", server.http_address)


def test_links_and_their_anchors_exist() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
            target, _, fragment = link.partition("#")
            path = page.parent / target if target else page
            if re.match(r"[a-z]+:", link) or (path.exists() and (not fragment or fragment in anchors(path))):
                continue
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = page_text("docs/index.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index, page.name


def test_the_example_photos_are_those_whose_licences_are_stated() -> None:
    stated = re.findall(r"^\| (\S+\.jpg) \|", page_text("examples/README.md"), flags=re.MULTILINE)
    assert sorted(stated) == sorted(path.name for path in (ROOT / "examples" / "photos").iterdir())


def test_no_page_installs_from_an_index_that_lacks_the_name() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"pip install '?onestream(?!(\[[\w,]+\])? @ git\+URL')", text) == [], page


def test_commands_of_the_readme_exist_with_their_options() -> None:
    """Of every line with ``onestream``: the command, its options and the files of the package that it names."""
    lines = [line for language in ("bash", "text") for block in blocks(README, language) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("onestream ")]
    assert len(commands) > 8
    environment = {"COLUMNS": "200", "TERM": "dumb"}
    help_of = {name: CliRunner().invoke(app, [name, "--help"], env=environment).stdout for name, *_ in commands}
    for name, *arguments in commands:
        for argument in arguments:
            if argument.startswith("-"):
                assert re.search(rf"(?<![\w-]){re.escape(argument)}(?![\w-])", help_of[name]), (name, argument)
            if argument.startswith(("examples/", "pipelines/")):
                assert (ROOT / argument).exists(), argument


def test_the_synopsis_of_serve_has_all_its_options() -> None:
    synopsis = page_text("docs/operations.md").split("\n\n")[2]
    assert synopsis.startswith("    onestream serve ")
    serve = typer.main.get_command(app).get_command(None, "serve")
    assert set(re.findall(r"--[a-z-]+", synopsis)) == {
        option for one in serve.params for option in one.opts if option.startswith("--")
    }


def test_make_targets_of_the_readme_exist() -> None:
    makefile = page_text("Makefile")
    targets = " ".join(re.findall(r"(?:^|`)make ([a-z -]+)", page_text("README.md"), flags=re.MULTILINE)).split()
    assert {"demo", "test", "install", "build"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_definition_shown_is_that_served() -> None:
    served = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    (shown,) = blocks(README, "yaml")
    assert Definition.model_validate(yaml.safe_load(shown)["preprocess"]) == served.preprocess


def test_the_committed_page_of_pipelines_has_every_section_and_field_of_the_models() -> None:
    text = pipeline_page.page()
    assert page_text("docs/pipeline.md") == text, "run: python -m generators.pipeline_page > docs/pipeline.md"
    schema = Pipeline.model_json_schema()
    told = 0
    for model in [schema, *schema["$defs"].values()]:
        for name in model["properties"].keys() - {"op", "kind"}:
            assert f"\n| `{name}` |" in text, name
            told += 1
    for row in ("| `stages` |", "| `precision` of a stage |"):
        assert f"\n{row}" in text
    detection, *like = (schema["$defs"][name]["properties"] for name in ("Detection", *LIKE_DETECTION))
    once = sum(one.get(name) == field for one in like for name, field in detection.items())
    assert once > 5, "the page has one row for the same field of both"
    assert text.count("\n| `") == told + 2 - once


@pytest.mark.slow
def test_the_committed_page_of_imports_is_of_the_installed_libraries() -> None:
    for name in ("torchvision", "timm", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    assert page_text("docs/import.md") == import_page.page(), "run: python -m generators.import_page > docs/import.md"


def test_every_class_whose_rules_are_known_is_imported_somehow() -> None:
    """By its defaults, but those whose defaults are no size of a network, or no tiles; Qwen3-VL's has videos only."""
    rows = re.findall(
        r"^\| (equal|within|–) \| (?:equal|within|–) \| (.*) \|$", page_text("docs/import.md"), flags=re.MULTILINE
    )
    listed = {name for _, names in rows for name in names.split(", ")}
    assert FAMILIES.keys() - listed == {"LlavaNext", "MobileViT", "Qwen3VL", "Yolos"}


def printed(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a program prints."""
    exec(compile(program, "program of a page", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of pages are for the checkout's folder."""
    monkeypatch.chdir(ROOT)


def test_the_programs_of_the_definition_page_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    program = "\n".join(blocks("definition.md", "python"))
    shown = re.findall(r"print\(.*# (?:.*: )?(.+)", program)
    assert printed(program, capsys).splitlines()[1:] == shown


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_programs_of_the_readme_run(server: SharedServer, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (printed(at(server, program), capsys) for program in blocks(README, "python"))
    assert first.startswith("espresso 0.95")
    assert "1 unsupported_format" in first
    assert second.startswith("(4, 3, 224, 224) [")


@pytest.mark.needs_triton
def test_the_programs_of_the_client_page_run(server: SharedServer, capsys: pytest.CaptureFixture[str]) -> None:
    ours, tritons = (
        printed(at(server, program), capsys) for program in blocks("client.md", "python") if "asyncio" not in program
    )
    assert ours == "['class_ids', 'labels', 'scores']\n"
    assert "espresso" in tritons


@pytest.mark.needs_triton
def test_the_curl_recipe_prints_json(server: SharedServer) -> None:
    """Every label whole, also the shortest: ImageNet has *ox*."""
    (recipe,) = (block for block in blocks("client.md", "bash") if "Inference-Header" in block)
    command = ["bash", "-c", at(server, recipe)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    outputs = {output["name"]: output["data"] for output in json.loads(done.stdout)["outputs"]}
    assert outputs["labels"][0] == "espresso"
    assert len(outputs["labels"]) == len(outputs["scores"]) == len(outputs["class_ids"]) == 5


@pytest.mark.slow
def test_the_tutorial_trains_exports_imports_and_builds(tmp_path: Path) -> None:
    """Without the weights, which are a download, and with any torchvision beside any PyTorch."""
    for name in ("cat", "rocket"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "photos" / f"{name}.jpg", tmp_path / "photos" / name)
    program, *_ = blocks("own-network.md", "python")
    program = program.replace("weights=weights", "weights=None").replace("range(3)", "range(1)")
    printed_by(f"import torch\ntorch.library.register_fake = lambda *_, **__: lambda it: it\n{program}", tmp_path)
    commands, *_ = blocks("own-network.md", "bash")
    shell = Shell(tmp_path)
    for line in commands.splitlines():
        shell.line(line)
    built = json.loads((tmp_path / "model_repository" / "my_fused" / "definition.json").read_text())
    assert built["operations"][1]["size"] == 256


@pytest.mark.slow
def test_the_programs_of_the_training_page_run() -> None:
    found = blocks("training.md", "python")[:11]  # those of clips run in test_video_loader
    output = ["\n".join([*printed_by(block), ""]) for block in found]
    assert output[0].endswith("2 batches, exactly what serving computes\n")
    assert output.pop(1) == "2 batches of the epoch are left\n"
    assert output[1].startswith("('cat', 'cup', 'spoon') (17, 47, 50)\n(2, 3, 128, 128) [[")
    assert output[1].endswith(
        "(300, 451) [[0.0, 0.0, 401.0, 300.0]]\n(400, 600) [[173.0, 17.0, 413.0, 310.0], [325.0, 66.0, 425.0, 327.0]]\n"
    )
    assert len(output[2].splitlines()) == 2
    assert all(0 <= float(line) <= 1 for line in output[2].splitlines())
    assert output[3] == "(2, 3, 48, 224) [('all is one', 224, 28), ('hello', 120, 15)]\n"
    assert output.pop(4) == (
        "('animal', 'cup', 'table') [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]\n('warm', 'round') [[0.5, 0.25], [1.0, 0.75]]\n"
    )
    sampled = [json.loads(line) for line in output.pop(4).splitlines()]
    assert [len(batch) for batch in sampled] == [4, 4]
    assert {index for batch in sampled for index in batch} <= {1, 2, 3, 4}
    stored = [line.partition("] ") for line in output.pop(4).splitlines()]
    assert sorted(label for labels, *_ in stored for label in json.loads(f"{labels}]")) == [0, 1, 2, 3, 4, 5]
    assert all(name.endswith("train-000.tar: 0000") for *_, name in stored)
    assert output.pop(4) == "True\n"
    assert output.pop(4) == "0 (4, 3, 224, 224)\n0 (2, 3, 224, 224)\n1 (4, 3, 224, 224)\n1 (2, 3, 224, 224)\nTrue\n"
    assert output[4] == "torch.Size([3, 224, 224])\n"


@pytest.mark.slow
def test_the_page_of_vision_language_models_says_what_its_programs_do(tmp_path: Path) -> None:
    for library in ("torch", "transformers"):
        pytest.importorskip(library)
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "preprocessor_config.json").write_text(json.dumps(CONFIG))
    shutil.copytree(ROOT / "examples" / "photos", tmp_path / "photos")
    command, compared = blocks("vlm.md", "bash")
    shell = Shell(tmp_path)
    shell.line(command)
    by_folder, by_definition = compared.replace(" photos ", " photos/cat.jpg ").splitlines()
    assert "Processor and transformers slow stay within the tolerances" in " ".join(shell.line(by_folder).split())
    shell.line(by_definition)
    assert json.loads((tmp_path / "vlm.json").read_text())["within"]
    (shown,) = blocks("vlm.md", "yaml")
    imported = Definition.from_yaml((tmp_path / "qwen.yaml").read_text())
    assert imported == Definition.model_validate(yaml.safe_load(shown))

    first, videos, tiles, second, _, last = blocks("vlm.md", "python")
    program = "\n".join((first, videos, tiles, second, last))
    expected = re.findall(r"print\(.*\)  # (.+)", program)
    assert len(expected) == 11
    assert printed_by(program, tmp_path) == expected
