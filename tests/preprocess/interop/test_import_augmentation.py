"""``onestream import --augmentation``: the commands of its page, what they print, and that loaders take that."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from onestream.cli.main import app
from onestream.preprocess import Decode, Definition, Resize
from onestream.preprocess.training import Augmentation, ImageLoader

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "augmentation.md").read_text(encoding="utf-8")
MODULE = """
import torch
from torchvision.transforms import v2
my_transform = v2.Compose([
    v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(), v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    v2.RandomErasing(0.1),
])
my_options = {"input_size": 64, "re_prob": 0.25, "vflip": 0.5}
cut = v2.RandomCrop(32, padding=4)
turned = v2.Compose([v2.RandomRotation(5, fill=9), v2.Resize(70), v2.CenterCrop(64), v2.PILToTensor()])
number = 7
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["import", "--augmentation", *arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(MODULE)
    (tmp_path / "options.yaml").write_text("input_size: [3, 64, 64]\nre_prob: 0.25\nvflip: 0.5\n")
    (tmp_path / "names.yaml").write_text("- cat\n")
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    yield tmp_path
    # Other pages have a module of this name, too.
    sys.modules.pop("my_module", None)


def test_the_pages_commands_print_what_loaders_read() -> None:
    lines = re.findall(r"^onestream import --augmentation .*$", TEXT, flags=re.MULTILINE)
    assert len(lines) == 3
    found = []
    for line in lines:
        command, _ = line.partition("#")[0].split(">")
        result = run(*shlex.split(command)[3:])
        assert result.exit_code == 0, result.output
        found.append(result.stdout)
    (shown,) = re.findall(r"^```text\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert found[0] == shown
    names = [[one.op for one in Augmentation.from_yaml(text).operations] for text in found]
    assert names == [
        ["box", "flip", "trivial_augment", "erase"],
        ["box", "flip", "flip", "color_jitter", "erase"],
        ["box", "flip", "flip", "color_jitter", "erase"],
    ]
    assert "# Augmentation of timm's options my_module:my_options (timm " in found[1]
    assert all(len(line) <= 120 for text in found for line in text.splitlines() if line.startswith("# "))


def test_what_is_printed_is_what_was_imported(folder: Path) -> None:
    (folder / "chain.yaml").write_text(run("my_module:my_transform").stdout)
    chain = Augmentation.from_yaml((folder / "chain.yaml").read_text())
    assert chain.operations[3].model_dump()["fill"] == (124, 116, 104)
    definition = Definition(operations=[Decode(), Resize(mode="exact", size=(224, 224))])
    with ImageLoader(definition, ROOT / "examples" / "photos", batch_size=6, train=True, augmentation=chain) as loader:
        assert next(iter(loader)).images.shape == (6, 3, 224, 224)
    command = ["augment", str(ROOT / "pipelines" / "classify.yaml"), str(ROOT / "examples" / "photos" / "cat.jpg")]
    done = CliRunner().invoke(app, [*command, "--augmentation", "chain.yaml", "--epochs", "1", "--out", "sheet.png"])
    assert done.exit_code == 0, done.output


def test_the_comments_say_what_the_pipeline_must_be() -> None:
    assert "whose preprocessing leaves a picture of 32x32 as it is and has\n" in run("my_module:cut").stdout
    turned = run("my_module:turned").stdout
    assert "It is for a pipeline whose preprocessing has\n#   - {op: decode" in turned
    assert "#   - {op: resize, mode: shorter, size: 70" in turned
    assert turned.endswith("fill: 9\n")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("resnet50", ["no source of an augmentation", "my_module:my_options"]),
        ("missing.yaml", ["missing.yaml: No such file"]),
        ("names.yaml", ["names.yaml holds no options by name"]),
        ("my_module:number", ["builtins.int is code of its own"]),
        ("my_module:none", ["AttributeError"]),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(source: str, named: list[str]) -> None:
    result = run(source)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"cannot import {source}: ")
    for part in named:
        assert part in line


def test_a_pipeline_of_a_transform_for_training_names_the_option() -> None:
    result = CliRunner().invoke(app, ["import", "my_module:my_transform"])
    assert result.exit_code == 1
    assert "RandomResizedCrop is random, for training: import it with --augmentation" in result.stderr
    both = run("my_module:my_transform", "--test-size")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr


def test_an_augmentation_without_pytorch_names_what_installs_it(folder: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None
from onestream.preprocess import BackendMissing
from onestream.preprocess.interop import import_augmentation
try:
    import_augmentation("options.yaml")
except BackendMissing as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert "needs PyTorch: pip install '.[train]'" in done.stdout, done.stderr
