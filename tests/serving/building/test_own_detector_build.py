"""A detector built with the family of another: what its user reads. And names of classes that are refused."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner
from ultralytics_files import NAMES, Family, square_finder

from onestream.cli.main import app
from onestream.postprocess.kinds.detection import Detection
from onestream.preprocess.interop import from_letterbox
from onestream.serving.building.build import build
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.pipeline import Pipeline

pytestmark = pytest.mark.slow

SIZE = (160, 224)
SEEN: dict[Family, str] = {
    "yolo": "[batch, 7, 735]",
    "yolov5": "[batch, 2205, 8]",
    "boxes": "[batch, 300, 6]",
    "detr": "[batch, 300, 7]",
}
FAMILIES = ("yolo", "yolov5", "yolox", "ssd", "nanodet", "detr", "boxes")


def built(folder: Path, network: Any, postprocess: dict[str, Any]) -> None:
    (folder / "net.onnx").write_bytes(network.SerializeToString())
    operations = from_letterbox(SIZE).model_dump(mode="json")["operations"]
    fields = {"preprocess": {"operations": operations}, "postprocess": postprocess}
    (folder / "mine.yaml").write_text(yaml.safe_dump(fields))
    build(folder / "mine.yaml", folder=folder / "repository", onnx_file=folder / "net.onnx")


@pytest.mark.parametrize(("export", "family"), [pair for pair in product(SEEN, FAMILIES) if pair[0] != pair[1]])
def test_a_wrong_family_is_refused_with_the_usual_one(export: Family, family: str, tmp_path: Path) -> None:
    network = square_finder(export, size_hw=SIZE)
    postprocess = {"kind": "detection", "family": family, "labels": [*NAMES.values()]}
    with pytest.raises((BadNetwork, BadPipeline)) as caught:
        built(tmp_path, network, postprocess)
    said = str(caught.value)
    if (export, family) in (("boxes", "yolov5"), ("detr", "yolov5"), ("boxes", "detr")):
        # Their sizes suit both; the metadata say which.
        assert f"say postprocess: {{family: {export}}}; the pipeline says family {family}" in said
    else:
        assert f"the family {family} takes " in said
        assert SEEN[export] in said
        assert f"usual for the family {export}" in said


@pytest.mark.parametrize("labels", [[], [""], ["a", " "], ["a\nb"], [1, 2], {"0": "a"}, ["a", "b"]], ids=str)
def test_names_that_are_none_or_too_few_are_refused(labels: Any, tmp_path: Path) -> None:
    too_few = r"postprocess\.labels has 2 entries, the network has 3 classes"
    with pytest.raises(BadPipeline, match=too_few if labels == ["a", "b"] else r"postprocess\.detection\.labels"):
        built(tmp_path, square_finder(size_hw=SIZE), {"kind": "detection", "family": "yolo", "labels": labels})


PAGE = (Path(__file__).parents[3] / "docs" / "kinds.md").read_text(encoding="utf-8")
DETECTION = PAGE.partition("\n## Detection\n")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", DETECTION, flags=re.MULTILINE | re.DOTALL)


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("yolo11n.onnx").write_bytes(square_finder(size_hw=(640, 640)).SerializeToString())
    printed = CliRunner().invoke(app, ["import", "yolo11n.onnx"])
    assert printed.stdout == EXAMPLES[0]


@pytest.mark.parametrize("text", EXAMPLES[1:], ids=lambda text: re.findall(r"family: (\w+)", text)[0])
def test_every_example_is_a_pipeline(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    pipeline = Pipeline.from_file(file)
    assert isinstance(pipeline.postprocess, Detection)
    # A served network has one size.
    assert None not in pipeline.preprocess.output_spec.size_hw
