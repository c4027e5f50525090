"""``onestream parity`` of definitions that end in patches: against transformers, picture by picture."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from image_files import encode
from lazily import Lazily
from own_pipeline import words
from PIL import Image
from sample_images import photo
from typer.testing import CliRunner, Result

from onestream.cli.main import app
from onestream.preprocess.interop import from_huggingface

transformers = Lazily("transformers")
CONFIG = {
    "min_pixels": 784, "max_pixels": 2352, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.48, 0.45, 0.4], "image_std": [0.26, 0.25, 0.3], "image_processor_type": "Qwen2VLImageProcessor",
}  # fmt: skip
FAST = CONFIG | {"image_processor_type": "Qwen2VLImageProcessorFast"}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(encode(photo("coffee").resize((70, 50)), "JPEG"))
    (folder / "b.png").write_bytes(encode(photo("rocket").resize((33, 64)), "PNG"))
    return folder


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "preprocessor_config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "qwen"


def parity(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["parity", *map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exit_code == status, result.output
    return result


def compared(*arguments: object, status: int = 0) -> dict[str, Any]:
    """What the report says of each subject."""
    report = json.loads(parity(*arguments, "--json", "-", status=status).stdout)
    return {subject["name"]: subject for subject in report["subjects"]}


def test_a_folder_of_an_image_processor(qwen: Path, photos: Path, tmp_path: Path) -> None:
    (photos / "cut.png").write_bytes((photos / "b.png").read_bytes()[:90])
    (photos / "line.png").write_bytes(encode(Image.new("RGB", (201, 1)), "PNG"))
    file = tmp_path / "report.json"
    text = words(parity(qwen, photos, "--json", file))
    assert "Processor and transformers slow stay within the tolerances, no difference at all." in text
    assert "it resizes tensors, where the definition resizes as Pillow does (arithmetic: pil)" in text
    assert "a.jpg 1x2x4 2 equal equal" in text
    assert "absolute aspect ratio must be smaller than 200" in text
    report = json.loads(file.read_text())
    assert report["versions"]["transformers"] == metadata.version("transformers")
    subjects = {subject["name"]: subject for subject in report["subjects"]}
    judged = {"Processor": True, "transformers slow": True, "transformers fast": False}
    assert {name: one["judged"] for name, one in subjects.items()} == judged
    expected = [("a.jpg", [1, 2, 4], 2), ("b.png", [1, 4, 2], 2)]
    for one in subjects.values():
        assert [(Path(row["photo"]).name, row["grid"], row["tokens"]) for row in one["pictures"]] == expected
    for name in ("Processor", "transformers slow"):
        assert all(row["equal"] and row["levels"] == row["values"] == 0 for row in subjects[name]["pictures"])
    for row in subjects["transformers fast"]["pictures"]:
        assert not row["equal"]
        # A level is at least 1 / 255 / 0.3 of a normalized value, and at most 1 / 255 / 0.25.
        assert 0.99 / 255 / 0.3 < row["values"] / row["levels"] < 1.01 / 255 / 0.25


KINDS: dict[str, dict[str, Any]] = {
    "Glm4v": {"size": {"shortest_edge": 1568, "longest_edge": 8192}, "patch_size": 14},
    "PaddleOCRVL": {"size": {"shortest_edge": 784, "longest_edge": 2352}, "patch_size": 14},
    "Pixtral": {"size": {"longest_edge": 64}, "patch_size": {"height": 16, "width": 16}},
    "Siglip2": {"max_num_patches": 12, "patch_size": 16},
    "LlavaNext": {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24},
                  "image_grid_pinpoints": [[24, 48], [48, 24]]},
    "GotOcr2": {"size": {"height": 24, "width": 24}, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
    "Idefics3": {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 24}},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_patches_of_other_kinds(kind: str, photos: Path, tmp_path: Path) -> None:
    """Other orders, shapes and paddings of rows, and tiles; definitions, where their image processor follows."""
    (tmp_path / "own").mkdir()
    made = getattr(transformers, f"{kind}ImageProcessorPil")(**KINDS[kind])
    made.save_pretrained(tmp_path / "own")
    definition = from_huggingface(made)
    (tmp_path / "own.yaml").write_text(definition.to_yaml())
    follows = kind not in ("Pixtral", "Siglip2")
    if not follows:
        refusal = parity(tmp_path / "own.yaml", photos, status=2).stderr
        assert "give its folder, config or id in place of the definition, or --against none" in refusal
    for source in ("own", *(["own.yaml"] if follows else [])):
        subjects = compared(tmp_path / source, photos)
        for name in ("Processor", "transformers slow"):
            assert [row["equal"] for row in subjects[name]["pictures"]] == [True, True]
        for row in subjects["transformers fast"]["pictures"]:
            assert not row["equal"]
            assert row["values"] > 0
            assert row["levels"] < 40


def test_internvl_is_compared_as_its_processor_calls_it(photos: Path, tmp_path: Path) -> None:
    """In tiles, which the config alone turns off: that of the image processor, and that of the processor around it."""
    inner = transformers.GotOcr2ImageProcessorPil(size={"height": 14, "width": 14}, max_patches=6).to_dict()
    own = {"processor_class": "InternVLProcessor"}
    for config in ({**inner, **own}, {**own, "image_processor": inner}):
        (tmp_path / "own.json").write_text(json.dumps(config))
        for one in compared(tmp_path / "own.json", photos).values():
            assert [row["grid"] for row in one["pictures"]] == [[7, 2, 3], [3, 2, 1]]


def test_a_definition_and_a_pipeline(photos: Path, tmp_path: Path) -> None:
    """The one that resizes tensors is judged by the image processor that does."""
    definition = from_huggingface(FAST).model_dump(mode="json")
    pipeline = {"network": "none", "preprocess": definition, "postprocess": {"kind": "raw"}}
    for content in (definition, pipeline):
        file = tmp_path / "own.yaml"
        file.write_text(yaml.safe_dump(content))
        subjects = compared(file, photos / "a.jpg")
        assert [name for name, one in subjects.items() if one["judged"]] == ["Processor", "transformers fast"]


@pytest.mark.parametrize("change", ["bit", "tokens"])
def test_what_is_not_equal_exits_with_1(qwen: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    slow = transformers.Qwen2VLImageProcessorPil
    call = slow.__call__

    def other_bit(self: Any, **options: Any) -> Any:
        """The last one of one value, which is no level."""
        made = call(self, **options)
        made["pixel_values"][0, 0] = float(np.nextafter(np.float32(made["pixel_values"][0, 0]), np.float32(9)))
        return made

    if change == "bit":
        monkeypatch.setattr(slow, "__call__", other_bit)
    else:
        monkeypatch.setattr(slow, "get_number_of_image_patches", lambda *_: 400)
    subjects = compared(qwen, photos / "a.jpg", status=1)
    (row,) = subjects["transformers slow"]["pictures"]
    assert (row["equal"], row["levels"], row["tokens"]) == (False, 0, 2 if change == "bit" else 100)
    assert subjects["Processor"]["within"]


def test_an_id_on_the_hub(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixin = transformers.image_processing_base.ImageProcessingMixin
    monkeypatch.setattr(mixin, "get_image_processor_dict", lambda name: ({"Qwen/Qwen2-VL": CONFIG}[name], {}))
    assert json.loads(parity("Qwen/Qwen2-VL", photos / "a.jpg", "--json", "-").stdout)["pipeline"] == "Qwen2_VL"
    refusal = parity("Qwen/absent", photos / "a.jpg", status=2).stderr
    assert "Qwen/absent: no such file, and transformers loads no image processor of this id" in refusal


def test_without_transformers(qwen: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "transformers not installed: pip install transformers" in parity(qwen, photos / "a.jpg", status=2).stderr
    assert list(compared(qwen, photos / "a.jpg", "--against", "none")) == ["Processor"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--serve"], "patches are compared in process, not of a server; leave --serve out"),
        (["--url", "127.0.0.1:8001"], "patches are compared in process, not of a server; got 127.0.0.1:8001"),
        (["--video", "clip.mp4"], "patches are compared on photos; got --video clip.mp4"),
        (["--against", "opencv"], "--against opencv: allowed are transformers"),
        (["--against", "json:absent"], "no attribute 'absent'"),
    ],
)
def test_what_is_not_compared_exits_with_2(qwen: Path, photos: Path, arguments: list[str], reason: str) -> None:
    said = parity(qwen, photos / "a.jpg", *arguments, status=2).stderr
    assert reason in said
    assert len(said.strip().splitlines()) == 1
