"""``onestream import``: every form of a source, the commands of its pages, and what cannot be imported."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from agreement import printed_pipeline
from lazily import Lazily
from networks import mean_color
from typer.testing import CliRunner, Result
from ultralytics_files import square_finder

from generators import presets
from onestream.cli.main import app
from onestream.postprocess.kinds.detection import Detection
from onestream.preprocess import BackendMissing, CannotImport, Decode, Definition, Resize, interop
from onestream.preprocess.interop import from_letterbox, from_timm, import_source
from onestream.preprocess.training import Augmentation, ImageLoader
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
PAGE, AUGMENTATION_PAGE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("own-network.md", "augmentation.md")
)
timm, transformers, models = Lazily("timm"), Lazily("transformers"), Lazily("torchvision.models")
MODULE = """
import transformers
from torchvision import transforms
from onestream.preprocess.interop import from_letterbox

composed = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
processor = transformers.CLIPImageProcessorPil()
config = processor.to_dict()
my_transform = composed
definition = from_letterbox(96)
number = 7
"""
TRAINING = """
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
    return CliRunner().invoke(app, list(arguments))


def augmentation(*arguments: str) -> Result:
    return run("import", "--augmentation", *arguments)


def in_a_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with files of all kinds."""
    monkeypatch.chdir(tmp_path)
    transformers.CLIPImageProcessorPil().save_pretrained(tmp_path / "clip")
    (tmp_path / "clip" / "config.json").write_text('{"model_type": "clip"}')
    config = {"architecture": "resnet50", "pretrained_cfg": timm.get_pretrained_cfg("resnet50.tv_in1k").to_dict()}
    (tmp_path / "timm").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "timm" / "config.json").write_text(json.dumps(config))
    (tmp_path / "options.yaml").write_text("input_size: [3, 64, 64]\nre_prob: 0.25\nvflip: 0.5\n")
    (tmp_path / "names.yaml").write_text("- cat\n")
    (tmp_path / "deep.yaml").write_text("{" * 1000)
    (tmp_path / "odd.json").write_text(json.dumps({"image_processor_type": "\u2028" + "x" * 100_000}))
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"preprocess_cfg": {"size": 70}}))
    for name, text in (("own_preprocessing", MODULE), ("my_module", TRAINING)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "yolo11n.onnx").write_bytes(square_finder().SerializeToString())
    (tmp_path / "resnet50.onnx").write_bytes(mean_color((1, 3, 224, 224), classes=1000).SerializeToString())
    yield tmp_path
    # Other pages have modules of these names, too.
    for name in ("own_preprocessing", "my_module"):
        sys.modules.pop(name, None)


def clip() -> Definition:
    return interop.from_huggingface(transformers.CLIPImageProcessorPil())


def weights(name: str) -> Callable[[], Definition]:
    return lambda: interop.from_torchvision(models.get_weight(name))


SOURCES: dict[str, Callable[[], Definition]] = {
    "torchvision:ResNet50_Weights.IMAGENET1K_V2": weights("ResNet50_Weights.IMAGENET1K_V2"),
    "torchvision:resnet50": weights("ResNet50_Weights.DEFAULT"),
    "torchvision:FCN_ResNet50_Weights.DEFAULT": weights("FCN_ResNet50_Weights.DEFAULT"),
    "timm:mobilenetv3_small_100.lamb_in1k": lambda: from_timm("mobilenetv3_small_100.lamb_in1k"),
    "timm:timm/config.json": lambda: from_timm("resnet50.tv_in1k"),
    "timm/config.json": lambda: from_timm("resnet50.tv_in1k"),
    "timm": lambda: from_timm("resnet50.tv_in1k"),
    "clip/preprocessor_config.json": clip,
    "clip": clip,
    "open_clip_config.json": lambda: interop.from_open_clip({"size": 70}),
    "keras:caffe:224": lambda: interop.from_keras("caffe:224"),
    "letterbox": lambda: from_letterbox(640),
    "letterbox:416": lambda: from_letterbox(416),
    "letterbox:384x640": lambda: from_letterbox((384, 640)),
    "own_preprocessing:definition": lambda: from_letterbox(96),
    "own_preprocessing:processor": clip,
    "own_preprocessing:config": clip,
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("source", SOURCES)
def test_every_form_of_a_source_prints_a_pipeline(source: str, tmp_path: Path) -> None:
    pipeline = printed_pipeline(tmp_path, source)
    assert pipeline.preprocess == SOURCES[source]()
    printed = (tmp_path / "printed.yaml").read_text()
    assert printed.startswith("# Preprocessing of ")
    assert source.rpartition(":")[2].split(".")[0].split("/")[0].removeprefix("resnet50") in printed
    assert ("The size depends on the image" in printed) == ("FCN" in source)
    if source == "letterbox:384x640":
        assert pipeline.postprocess == Detection(
            family="yolo", score_threshold=0.25, iou_threshold=0.7, max_detections=300, max_candidates=1000
        )


def block_of_the_page(language: str) -> str:
    """The block of the section on sources."""
    _, _, section = PAGE.partition("\n## Sources\n")
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_pages_commands_run_print_what_is_shown_and_build_what_they_printed(folder: Path) -> None:
    (folder / "my_module.py").write_text(MODULE)
    lines = block_of_the_page("bash").splitlines()
    assert len(lines) == 9
    for line in lines:
        command = shlex.split(line, comments=True)[1:]
        result = run(*command)
        assert result.exit_code == 0, result.output
        if command[0] == "import":
            Pipeline.from_file(folder / command[-1])
    printed = (folder / "resnet50.yaml").read_text()
    stamped = json.loads((folder / "model_repository" / "resnet50_fused" / "definition.json").read_text())
    assert stamped == yaml.safe_load(printed)["preprocess"]
    # The first line has torchvision's version.
    assert printed.splitlines()[1:] == block_of_the_page("yaml").splitlines()[1:]


@pytest.mark.parametrize(
    "source",
    ["torchvision:resnet50", "torchvision:ResNet50_Weights.DEFAULT", "timm:resnet50", "timm:mobilenetv3_small_100"],
)
def test_published_models_need_no_library(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_size = source == "timm:resnet50"
    with_library = [import_source(source, use_test_size=one) for one in {False, test_size}]
    monkeypatch.setattr("onestream.preprocess.interop.source.is_installed", lambda _package: False)
    assert [import_source(source, use_test_size=one) for one in {False, test_size}] == with_library
    assert with_library[0].postprocess == {"kind": "classification", "labels": "imagenet"}
    with pytest.raises(CannotImport, match=r"no preset 'resnet51'; like it are .*resnet50"):
        import_source(f"{source.partition(':')[0]}:resnet51")


@pytest.mark.slow
def test_the_shipped_presets_are_those_of_the_libraries() -> None:
    assert json.loads(presets.FILE.read_text()) == presets.collect(), "write them anew: make presets"


@pytest.mark.usefixtures("folder")
def test_the_pages_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block_of_the_page("python"), {})
    assert capsys.readouterr().out.endswith(" (3, 640, 640) 235\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("google/vit-base-patch16-224", ["no file", "hf download google/vit-base-patch16-224"]),
        ("resnet50", ["no other source", "timm:mobilenetv3_small_100.lamb_in1k", "letterbox:640"]),
        ("empty", ["folder empty holds none of preprocessor_config.json"]),
        ("missing.json", ["missing.json: No such file"]),
        ("clip/config.json", ["config of a network", "preprocessor_config.json"]),
        ("torchvision:ResNet50_Weights.IMAGENET1K_V9", ["no weights", "IMAGENET1K_V9"]),
        ("torchvision:resnet51", ["no weights 'resnet51'"]),
        ("torchvision:R3D_18_Weights.DEFAULT", ["VideoClassification works on videos"]),
        ("timm:resnet51", ["no model 'resnet51'"]),
        ("letterbox:640,640", ["HEIGHTxWIDTH"]),
        ("letterbox:0", ["is 0"]),
        ("own_preprocessing:none", ["AttributeError"]),
        ("own_preprocessing:number", ["int"]),
        ("no_such_module:transform", ["ModuleNotFoundError"]),
        ("--augmentation deep.yaml", ["deep.yaml: it nests more than 32"]),
        ("odd.json", ["xxx…"]),
        ("--augmentation resnet50", ["no source of an augmentation", "my_module:my_options"]),
        ("--augmentation missing.yaml", ["missing.yaml: No such file"]),
        ("--augmentation names.yaml", ["names.yaml holds no options by name"]),
        ("--augmentation my_module:number", ["builtins.int is code of its own"]),
        ("--augmentation my_module:none", ["AttributeError"]),
    ],
)
def test_what_cannot_be_imported_is_said(arguments: str, named: list[str], folder: Path) -> None:
    *_, source = arguments.split()
    (folder / "mine.yaml").write_text("kept")
    result = run("import", *arguments.split(), "-o", "mine.yaml")
    assert (result.exit_code, result.stdout, (folder / "mine.yaml").read_text()) == (1, "", "kept")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"cannot import {source}: ")
    for part in named:
        assert part in line


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029"], ids=repr)
def test_text_of_others_stays_in_its_comment(end: str, tmp_path: Path) -> None:
    source = tmp_path / f"a{end}limits: b.onnx"
    network = square_finder(description=f"evil{end}network: efficientnet-lite0{end}x: 1")
    source.write_bytes(network.SerializeToString())
    printed = printed_pipeline(tmp_path, str(source))
    assert printed.network is None
    assert yaml.safe_load((tmp_path / "printed.yaml").read_text()).keys() == {"preprocess", "postprocess"}


def test_the_size_for_tests() -> None:
    sizes = [run("import", "timm:convnext_tiny.fb_in1k", *option).stdout for option in ([], ["--test-size"])]
    assert "{op: center_crop, size: [224, 224]}" in sizes[0]
    assert "{op: center_crop, size: [288, 288]}" in sizes[1]
    assert "timm's convnext_tiny.fb_in1k (timm " in sizes[0].splitlines()[0]
    assert ", with the size for tests" in sizes[1].splitlines()[0]
    refused = run("import", "letterbox:640", "--test-size")
    assert refused.exit_code == 1
    assert "only configs of timm" in refused.stderr


def test_configs_need_none_of_the_libraries(folder: Path) -> None:
    script = """
import sys
for name in ("torch", "torchvision", "timm", "transformers"):
    sys.modules[name] = None
from onestream.preprocess.interop import import_source
for source in ("clip", "timm", "letterbox:64"):
    print(import_source(source).definition.output_spec.shape)
"""
    done = in_a_process(folder, "-c", script)
    assert done.stdout.split("\n")[:3] == ["(3, 224, 224)", "(3, 224, 224)", "(3, 64, 64)"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("source", ["torchvision:resnet50", "own_preprocessing:composed"])
def test_a_process_of_its_own_imports_too(source: str, folder: Path) -> None:
    """Where torchvision was built for another PyTorch too, whose operators are then missing."""
    done = in_a_process(folder, "-m", "onestream", "import", source)
    assert done.stdout == run("import", source).stdout, done.stderr


@pytest.mark.parametrize(
    ("source", "absent", "command"),
    [
        ("timm:resnet50", "timm.models", "pip install timm"),
        ("torchvision:resnet50", "torchvision.models", "pip install torchvision"),
        ("exported.onnx", "onnx", r"pip install -e '\.\[cpu\]'"),
    ],
)
def test_a_library_that_is_missing_is_named(
    source: str, absent: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    (tmp_path / "exported.onnx").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendMissing, match=command):
        import_source(source)


@pytest.mark.usefixtures("folder")
def test_the_commands_for_augmentations_print_what_loaders_read() -> None:
    lines = re.findall(r"^onestream import --augmentation .*$", AUGMENTATION_PAGE, flags=re.MULTILINE)
    assert len(lines) == 3
    found = []
    for line in lines:
        *command, option, _ = shlex.split(line, comments=True)
        assert option == "-o"
        result = augmentation(*command[3:])
        assert result.exit_code == 0, result.output
        found.append(result.stdout)
    (shown,) = re.findall(r"^```text\n(.*?)^```", AUGMENTATION_PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found[0] == shown
    of_module, *of_timm = ([one.op for one in Augmentation.from_yaml(text).operations] for text in found)
    assert of_module == ["box", "flip", "trivial_augment", "erase"]
    assert of_timm == [["box", "flip", "flip", "color_jitter", "erase"]] * 2
    assert "# Augmentation of timm's options my_module:my_options (timm " in found[1]
    assert all(len(line) <= 120 for text in found for line in text.splitlines() if line.startswith("# "))


def test_a_printed_augmentation_is_what_was_imported(folder: Path) -> None:
    (folder / "chain.yaml").write_text(augmentation("my_module:my_transform").stdout)
    chain = Augmentation.from_yaml((folder / "chain.yaml").read_text())
    assert chain.operations[3].model_dump()["fill"] == (124, 116, 104)
    definition = Definition(operations=[Decode(), Resize(mode="exact", size=(224, 224))])
    with ImageLoader(definition, ROOT / "examples" / "photos", batch_size=6, train=True, augmentation=chain) as loader:
        assert next(iter(loader)).images.shape == (6, 3, 224, 224)
    files = [str(ROOT / "pipelines" / "classify.yaml"), str(ROOT / "examples" / "photos" / "cat.jpg")]
    done = run("augment", *files, "--augmentation", "chain.yaml", "--epochs", "1", "--out", "sheet.png")
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("folder")
def test_what_the_pipeline_must_be_and_what_is_for_training_is_said() -> None:
    assert "whose preprocessing leaves a picture of 32x32 as it is and has\n" in augmentation("my_module:cut").stdout
    turned = augmentation("my_module:turned").stdout
    assert "It is for a pipeline whose preprocessing has\n#   - {op: decode" in turned
    assert "#   - {op: resize, mode: shorter, size: 70" in turned
    assert turned.endswith("fill: 9\n")
    result = run("import", "my_module:my_transform")
    assert result.exit_code == 1
    assert "RandomResizedCrop is random, for training: import it with --augmentation" in result.stderr
    both = augmentation("my_module:my_transform", "--test-size")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr
