"""What training sees of a picture, on the page: the sheet of ``onestream augment``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from page_process import ROOT, PageProcess, PageThread, RunningPage, pixels_of
from shared_server import SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.preprocess.training import Augmentation
from onestream.preprocess.training.sheet import Subject, contact_sheet
from onestream.serving.pipeline import Pipeline
from onestream.wire.box_style import color_of

CHAIN = "operations:\n- {op: scale_jitter}\n- {op: rotation, degrees: [20, 30]}\nfill: 200\n"


def assert_is_the_sheet(shown: dict[str, object], augmentation: Augmentation, pipeline: str, subject: Subject) -> None:
    definition = Pipeline.from_file(ROOT / "pipelines" / f"{pipeline}.yaml").preprocess
    sheet = contact_sheet(definition, augmentation, [subject], epochs=5)
    np.testing.assert_array_equal(pixels_of(str(shown["image"])), np.asarray(sheet.image))
    assert shown["variations"] == [str(one) for one in sheet.drawn[0]]
    assert "why" not in shown


def test_it_is_shown_with_a_box_and_a_flip(page: RunningPage, photos: dict[str, bytes]) -> None:
    for form in ("classify", "classify_fused"):
        shown, subject = page.look(form, photos["coffee"])["training"], Subject("photo", photos["coffee"])
        assert_is_the_sheet(shown, Augmentation(), "classify", subject)


def test_the_page_can_be_started_with_an_augmentation(
    server: SharedServer, photos: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    with PageThread(server.grpc_address, augmentation=tmp_path / "chain.yaml") as page:
        seen = page.look("detect", photos["cat"])
    # With the boxes of what the server found.
    objects = seen["answer"]["objects"]
    classes = {f"rgb{color_of(class_id)}": class_id for class_id in range(100)}
    subject = Subject(
        "photo",
        photos["cat"],
        np.array([[*one["quad"][0], *one["quad"][2]] for one in objects], np.float32),
        np.array([classes[one["color"]] for one in objects], np.int64),
    )
    assert len(objects) > 0
    assert_is_the_sheet(seen["training"], Augmentation.from_yaml(CHAIN), "detect", subject)


@pytest.mark.slow
def test_without_pytorch_the_page_says_so_and_shows_the_rest(
    server: SharedServer, photos: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with PageProcess("--url", server.grpc_address, "--port", "0") as page:
        shown = page.look("classify", photos["coffee"])
    assert shown["answer"]["labels"][0]["label"] == "espresso"
    assert shown["training"]["image"] is None
    assert "needs PyTorch: pip install -e '.[train]'" in shown["training"]["why"]


def test_an_augmentation_that_is_none_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("operations: [{op: spin}]\n")
    done = CliRunner().invoke(app, ["demo", "page", "--port", "0", "--augmentation", str(tmp_path / "wrong.yaml")])
    assert done.exit_code == 2
    assert "wrong.yaml: operations.0: no op 'spin' (allowed: " in done.stderr
