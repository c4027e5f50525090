"""Parity of a detector: what became of its boxes, and why, in the user's unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import detectors
import numpy as np
import pytest
import yaml
from builds import build
from client_fakes import detections
from own_pipeline import Own, words
from PIL import Image

from onestream.measure.parity import run as run_module
from onestream.measure.parity.answers import Answers, Tally
from onestream.measure.parity.report import Report
from onestream.measure.parity.subject import Outputs
from onestream.postprocess.average_precision import agreement_ap
from onestream.wire.comparing import Found

ROOT = Path(__file__).parents[3]
PHOTOS = ROOT / "examples" / "photos"

Box = tuple[float, float, float, float]


def answer(*objects: tuple[str, float, Box]) -> Outputs:
    """What a pipeline answers, of (class, score, box); a class's id is its first letter."""
    return detections(*((name, ord(name[0]), score, box) for name, score, box in objects))


def test_boxes_lost_added_moved_and_equal_are_told_apart() -> None:
    tally = Tally(Answers(kind="detection", section="boxes", most=100))
    cat, sink, dog = (0, 0, 100, 100), (0, 0, 100, 90), (200, 0, 260, 60)
    tally.add("a.jpg", "", answer(("cat", 0.9, cat), ("dog", 0.8, dog)), answer(("sink", 0.4, sink), ("dog", 0.8, dog)))
    tally.add("b.jpg", "", answer(("cat", 0.9, cat)), answer(("cat", 0.9, (0, 0, 100, 103)), ("dog", 0.3, dog)))
    tally.add("c.jpg", "", answer(("dog", 0.7, dog)), answer())
    tally.add("d.jpg", "", answer(), answer())
    verdicts = tally.verdicts()
    figures = verdicts.boxes
    assert (figures.expected, figures.lost, figures.added, figures.moved, figures.equal) == (4, 2, 2, 1, 1)
    assert figures.farthest_px == 3.0
    told = [(flip.photo, flip.expected, flip.got) for flip in verdicts.flips]
    assert told == [
        ("a.jpg", "cat 0.90", "sink 0.40"),
        ("b.jpg", "nothing", "dog 0.30"),
        ("c.jpg", "dog 0.70", "nothing"),
    ]


def test_agreement_is_cocos_average_precision() -> None:
    """Worked out by hand: a class counts as much as another, and a box at ten thresholds of its overlap."""
    cat, dog = ("cat", 0.9, (0.0, 0.0, 100.0, 100.0)), ("dog", 0.8, (0.0, 0.0, 50.0, 50.0))

    def found(*objects: tuple[str, float, Box]) -> Found:
        return Found.of("detection", answer(*objects))

    truth = found(cat, dog)
    assert agreement_ap([(truth, truth)], 100) == pytest.approx(1)
    assert agreement_ap([(truth, found(cat))], 100) == pytest.approx(1 / 2), "a class is lost"
    assert agreement_ap([(truth, found())], 100) == 0
    # An IoU of 0.77 passes six of the thresholds 0.5, 0.55, … 0.95.
    assert agreement_ap([(found(cat), found(("cat", 0.9, (0, 0, 100, 77))))], 100) == pytest.approx(0.6)
    # A better-scored box that is wrong halves the precision at every recall.
    wrong = ("cat", 0.99, (500.0, 500.0, 600.0, 600.0))
    assert agreement_ap([(found(cat), found(wrong, cat))], 100) == pytest.approx(1 / 2)
    # Boxes are looked for in their own picture.
    assert agreement_ap([(found(cat), found(dog)), (found(dog), found(cat))], 100) == 0
    assert agreement_ap([(found(), found(cat))], 100) is None, "there is no truth"


@pytest.fixture(scope="module")
def cells_built(tmp_path_factory: pytest.TempPathFactory) -> Own:
    """A detector whose score is how red a cell is."""
    folder = tmp_path_factory.mktemp("cells")
    detectors.level_detector(folder / "cells.onnx")
    (folder / "cells.yaml").write_text(yaml.safe_dump(detectors.pipeline("cells", score_threshold=0.5)))
    build(folder / "cells.yaml", folder=folder / "repository", onnx_file=folder / "cells.onnx")
    return Own(folder / "cells.yaml", folder / "repository")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Three red cells of the network's 64; one of them is near the threshold."""
    side = detectors.CELL
    pixels = np.zeros((detectors.SIDE, detectors.SIDE, 3), np.uint8)
    for row, column, level in ((0, 0, 250), (3, 5, 200), (7, 7, 130)):
        pixels[side * row : side * row + side, side * column : side * column + side, 0] = level
    Image.fromarray(pixels).save(tmp_path / "cells.png")
    return tmp_path / "cells.png"


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "cells_transforms.py").write_text(
        "import numpy as np\n"
        "def right(image):\n"
        "    return np.asarray(image.resize((64, 64), 2), np.float32).transpose(2, 0, 1) / 255\n"
        "def darker(image):\n"
        "    return right(image) * np.float32(0.9)\n"
        "def bgr(image):\n"
        "    return right(image)[::-1]\n"
        "def levels(image):\n"
        "    return right(image) * np.float32(255)\n"
    )
    monkeypatch.chdir(tmp_path)
    return "cells_transforms"


def test_own_code_is_told_what_becomes_of_boxes(cells_built: Own, picture: Path, own_code: str) -> None:
    names = [f"{own_code}:{name}" for name in ("right", "darker", "bgr", "levels")]
    arguments = [word for name in names for word in ("--against", name)]
    result = cells_built.parity(picture, *arguments, "--json", "-")
    dali, right, darker, bgr, levels = json.loads(result.stdout)["subjects"]
    same = {"expected": 3, "lost": 0, "added": 0, "moved": 0, "equal": 3, "farthest_px": 0.0, "agreement_ap": 1.0}
    assert dali["boxes"] == right["boxes"] == same
    assert darker["boxes"] == same | {"lost": 1, "equal": 2, "agreement_ap": pytest.approx(2 / 3, abs=0.01)}
    assert [(flip["expected"], flip["got"]) for flip in darker["flips"]] == [("0 0.51", "nothing")]
    assert bgr["boxes"] == same | {"lost": 3, "equal": 0, "agreement_ap": 0.0}
    assert bgr["looks_like"] == "channels in reverse order"
    assert levels["looks_like"] == "pixels from 0 to 255 in place of the definition's mean, std and scale"
    assert (dali["logits"], darker["looks_like"]) == (None, "")


def test_the_table_and_the_paragraph_speak_of_boxes(cells_built: Own, picture: Path, own_code: str) -> None:
    text = words(cells_built.parity(picture, "--against", f"{own_code}:darker"))
    for part in (
        "boxes lost 0 of 3",
        "boxes lost 1 of 3",
        "agreement AP 1.000",
        "cells.png: 0 0.51 → nothing",
        "; of 3 boxes none is lost, none added and none moved by more than a pixel.",
        "By that skew, of 3 boxes 1 is lost, none added and none moved by more than a pixel, without an error",
    ):
        assert part in text
    assert "logits" not in text
    assert "top-1" not in text


def test_limits_of_boxes_decide_the_status(cells_built: Own, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (picture, "--against", "pillow")
    cells_built.parity(*arguments, "--min-ap", "1", "--fail-on-flip")
    real = run_module.run

    def with_ap(ap: float, *, of: str) -> None:
        def run(options: run_module.Options, **more: Any) -> Report:
            report = real(options, **more)
            boxes = {one.name: one.boxes for one in report.subjects}
            boxes[of] = boxes[of].model_copy(update={"agreement_ap": ap})
            subjects = [one.model_copy(update={"boxes": boxes[one.name]}) for one in report.subjects]
            return report.model_copy(update={"subjects": subjects})

        monkeypatch.setattr(run_module, "run", run)

    with_ap(0.9, of="dali (cpu)")
    cells_built.parity(*arguments, "--min-ap", "0.95", status=1)
    cells_built.parity(*arguments, "--min-ap", "0.85")
    with_ap(0.1, of="Pillow")
    # Code of others is not judged.
    cells_built.parity(*arguments, "--min-ap", "0.95")


def test_a_pipeline_that_finds_no_objects_is_named(cells_built: Own, own: Own, tmp_path: Path) -> None:
    nothing = tmp_path / "black.png"
    Image.new("RGB", (64, 64)).save(nothing)
    for asked, photo, said in (
        (cells_built, nothing, "the reference finds no object in these images"),
        (own, PHOTOS / "cat.jpg", "mine finds no objects: its postprocess is of another kind"),
    ):
        refusal = asked.parity(photo, "--against", "none", "--min-ap", "0.5", status=2).stderr
        assert f"--min-ap: {said}" in refusal
    own.rewrite(postprocess={"kind": "detection", "family": "yolo"})
    result = own.parity(PHOTOS / "cat.jpg", "--against", "none")
    assert "was not built for detection; onestream build writes one that is" in words(result)


@pytest.mark.slow
def test_a_published_packages_values_turn_the_cat_into_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    nanodet = Own(ROOT / "pipelines" / "nanodet.yaml", tmp_path / "repository")
    build(nanodet.file, folder=nanodet.repository)
    result = nanodet.parity(PHOTOS / "cat.jpg", "--against", "examples.nanodet_rgb:rgb_by_255", "--json", "-")
    dali, skewed = json.loads(result.stdout)["subjects"]
    assert (dali["boxes"]["lost"], dali["boxes"]["added"]) == (0, 0)
    (flip,) = skewed["flips"]
    assert flip["expected"].startswith("cat 0.5")
    assert flip["got"].startswith("sink 0.3")
    assert skewed["looks_like"].startswith("channels in reverse order, and pixels / 255")
    from examples.nanodet_rgb import main

    main(PHOTOS / "cat.jpg", tmp_path / "both.jpg", nanodet.repository)
    with Image.open(PHOTOS / "cat.jpg") as photo, Image.open(tmp_path / "both.jpg") as both:
        assert both.size == (2 * photo.width, photo.height)
