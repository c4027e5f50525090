"""``onestream augment``: a sheet that shows what a loader gives, and errors that say what to change."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from onestream.cli.main import app
from onestream.preprocess.training import IGNORE, Augmentation, DetectionLoader, ImageLoader, read_coco
from onestream.serving.pipeline import Pipeline
from onestream.wire.box_style import color_of

ROOT = Path(__file__).parents[2]
PHOTOS = ROOT / "examples" / "photos"
SHAPES, COCO = (ROOT / "examples" / "train_detector" / name for name in ("shapes.yaml", "photos.json"))
CLASSIFY = ROOT / "pipelines" / "classify.yaml"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["augment", *map(str, arguments)])


def sheet_of(folder: Path, *arguments: object) -> tuple[np.ndarray, Result]:
    """The sheet that a command makes, and what it says."""
    done = run(*arguments, "--out", folder / "sheet.png")
    assert done.exit_code == 0, done.output
    return np.asarray(Image.open(folder / "sheet.png")), done


def cells(sheet: np.ndarray, columns: int, side: int) -> list[np.ndarray]:
    """The first row of a sheet."""
    firsts = [across * (side + 4) + 4 * (across > 0) for across in range(columns)]
    return [sheet[:side, first : first + side] for first in firsts]


def test_the_sheet_shows_what_a_loader_gives(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(PHOTOS / "cat.jpg", folder)
    chain = "operations:\n- {op: box}\n- {op: flip}\n- {op: trivial_augment}\n"
    (tmp_path / "chain.yaml").write_text(chain)
    options = ("--augmentation", tmp_path / "chain.yaml", "--epochs", 3, "--seed", 5)
    sheet, done = sheet_of(tmp_path, CLASSIFY, folder, *options)
    assert len(done.stdout.splitlines()) == 3
    assert "cat.jpg, epoch 0: " in done.stdout
    definition = Pipeline.from_file(CLASSIFY).preprocess.pixels()
    shown = cells(sheet, 4, 224)
    with ImageLoader(definition, folder, batch_size=1) as loader:
        np.testing.assert_array_equal(shown[0], next(iter(loader)).images[0].numpy())
    with ImageLoader(
        definition, folder, batch_size=1, train=True, seed=5, augmentation=Augmentation.from_yaml(chain)
    ) as loader:
        for epoch in range(3):
            np.testing.assert_array_equal(shown[1 + epoch], next(iter(loader)).images[0].numpy())
            loader.reset()


def test_boxes_are_drawn(tmp_path: Path) -> None:
    operations = ("--operation", "scale_jitter", "--operation", "{op: rotation, degrees: [-30, 30]}")
    command = (SHAPES, PHOTOS / "cat.jpg", PHOTOS / "coffee.jpg", *operations)
    one, other = (sheet_of(tmp_path, *command, *more)[0] for more in ((), ("--boxes", COCO)))
    assert one.shape == other.shape
    assert 0 < (one != other).any(axis=2).mean() < 0.3


def test_keypoints_are_drawn(tmp_path: Path) -> None:
    content = json.loads(COCO.read_text())
    content["categories"][0]["keypoints"] = ["nose", "tail"]
    content["annotations"][0]["keypoints"] = [225, 150, 2, 0, 0, 0]
    (tmp_path / "marked.json").write_text(json.dumps(content))
    command = (CLASSIFY, PHOTOS / "cat.jpg", "--epochs", 1, "--boxes")
    served = [cells(sheet_of(tmp_path, *command, file)[0], 2, 224)[0] for file in (COCO, tmp_path / "marked.json")]
    rows, columns = (served[0] != served[1]).any(axis=2).nonzero()
    # The middle of the photo is that of the crop, and a dot is some 5 pixels wide.
    assert abs(rows.mean() - 112) < 2
    assert abs(columns.mean() - 112) < 2
    assert 8 < len(rows) < 50


def test_keypoints_that_cannot_be_read_are_told_of_and_the_boxes_drawn(tmp_path: Path) -> None:
    content = json.loads(COCO.read_text())
    content["categories"][0]["keypoints"], content["categories"][1]["keypoints"] = ["nose"], ["tail"]
    (tmp_path / "marked.json").write_text(json.dumps(content))
    command = (CLASSIFY, PHOTOS / "cat.jpg", "--epochs", 1, "--boxes")
    boxes, _ = sheet_of(tmp_path, *command, COCO)
    sheet, done = sheet_of(tmp_path, *command, tmp_path / "marked.json")
    assert "keypoints are not drawn: " in done.stderr
    assert "have other keypoints each" in done.stderr
    np.testing.assert_array_equal(sheet, boxes)


def test_photos_in_folders_below_are_found_by_the_path_that_the_file_names(tmp_path: Path) -> None:
    content = json.loads(COCO.read_text())
    for image in content["images"]:
        image["file_name"] = f"train/{image['file_name']}"
    (tmp_path / "below.json").write_text(json.dumps(content))
    (tmp_path / "photos" / "train").mkdir(parents=True)
    shutil.copy(PHOTOS / "cat.jpg", tmp_path / "photos" / "train")
    places = ((PHOTOS / "cat.jpg", COCO), (tmp_path / "photos", tmp_path / "below.json"))
    sheets = [sheet_of(tmp_path, CLASSIFY, photos, "--boxes", file, "--epochs", 1)[0] for photos, file in places]
    np.testing.assert_array_equal(*sheets)
    none = run(CLASSIFY, PHOTOS / "cat.jpg", "--boxes", tmp_path / "below.json", "--out", tmp_path / "sheet.png")
    assert none.exit_code == 2
    assert "below.json lists none of the photos" in none.output
    Image.new("RGB", (20, 30)).save(tmp_path / "photos" / "train" / "cat.jpg")
    other = run(CLASSIFY, tmp_path / "photos", "--boxes", tmp_path / "below.json", "--out", tmp_path / "sheet.png")
    assert other.exit_code == 1
    assert "cat.jpg: the picture has 20x30 pixels after its EXIF orientation" in other.output


def test_masks_are_drawn_where_they_come_to_lie(tmp_path: Path) -> None:
    mask = np.ones((300, 451), np.uint8)
    mask[:, 225:] = IGNORE
    Image.fromarray(mask).save(tmp_path / "cat.png")
    made = []
    command = (CLASSIFY, PHOTOS / "cat.jpg", "--operation", "{op: flip, probability: 1}", "--epochs", 1)
    for more in ((), ("--masks", tmp_path)):
        sheet, _ = sheet_of(tmp_path, *command, *more)
        made.append([cell.astype(int) for cell in cells(sheet, 2, 224)])
    for turn, plain, painted in zip((1, -1), *made, strict=True):
        before, after = plain[:, ::turn], painted[:, ::turn]
        # What lies beyond the middle of the photo has no class.
        np.testing.assert_array_equal(before[:, 114:], after[:, 114:])
        assert np.abs(after - (before + color_of(1)) / 2)[:, :110].max() <= 1
    for options, code, message in (
        (("--masks", tmp_path / "none"), 1, "cat.jpg: the mask "),
        (("--masks", tmp_path, "--operation", "mosaic"), 2, "mosaic cannot vary masks"),
        (("--masks", tmp_path, "--lines", "lines.jsonl"), 2, "--masks and --lines exclude each other"),
    ):
        refused = run(CLASSIFY, PHOTOS / "cat.jpg", *options, "--out", tmp_path / "sheet.png")
        assert refused.exit_code == code, refused.output
        assert message in refused.output


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--operation", "spin"), 2, "--operation: operations.0: no op 'spin'"),
        (("--operation", "{op: rotation, degrees: 5}"), 2, "operations.0.rotation.degrees: Input should be"),
        (
            ("--operation", "mosaic", "--operation", "rotation"),
            2,
            "--operation: rotation moves pixels, so it must come before mosaic",
        ),
        (("--operation", "box", "--augmentation", "x.yaml"), 2, "exclude each other"),
        (("--augmentation", "missing.yaml"), 2, "missing.yaml: No such file or directory"),
        (("--boxes", "missing.json"), 2, "missing.json"),
        (("--boxes", str(COCO), "--operation", "warp"), 2, "--operation: warp cannot vary boxes"),
        (("--operation", "speed"), 2, "speed cannot vary classes or boxes, only clips"),
        (("missing.jpg",), 1, "missing.jpg: No such file or directory"),
        (("--cost", "--lines", "lines.jsonl"), 2, "--cost is of pictures, not of --lines"),
        ((str(ROOT / "README.md"),), 1, "README.md: bad image"),
    ],
)
def test_errors_say_what_to_change(tmp_path: Path, options: tuple[str, ...], code: int, message: str) -> None:
    done = run(CLASSIFY, PHOTOS / "cat.jpg", *options, "--out", tmp_path / "sheet.png")
    assert done.exit_code == code, done.output
    assert message in done.output
    assert not (tmp_path / "sheet.png").exists()


def test_a_sheet_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = run(CLASSIFY, PHOTOS / "cat.jpg", "--out", tmp_path / "none" / "sheet.png", "--epochs", 1)
    assert done.exit_code == 2
    assert "sheet.png: No such file or directory" in done.output


PAGE = (ROOT / "docs" / "augmentation.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (.*?) \| ", PAGE, flags=re.MULTILINE)
PICTURED = [(name, drawn) for name, drawn in ROWS if f"![{name}](augmentation/{name}.jpg)" in PAGE]


@pytest.mark.parametrize(
    ("name", "drawn"), [*PICTURED[:2], *(pytest.param(*one, marks=pytest.mark.slow) for one in PICTURED[2:])]
)
def test_the_pages_pictures_are_made_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, drawn: str
) -> None:
    """By the last command above the row, with the name and the settings of the row."""
    above = PAGE[: PAGE.index(f"\n| `{name}` | ")]
    *_, command = re.findall(r"^    onestream augment (.*)$", above, flags=re.MULTILINE)
    settings = re.search(r"`\{(.*)\}`", drawn)
    out = tmp_path / f"{name}.jpg"
    operation = f"NAME, probability: 1{f', {settings[1]}' if settings else ''}".replace("NAME", name)
    words = shlex.split(command.replace("NAME, probability: 1", operation))
    monkeypatch.chdir(ROOT)
    done = run(*words[: words.index("--out")], "--out", out)
    assert done.exit_code == 0, done.output
    seen, shown = (
        np.asarray(Image.open(path), np.int16) for path in (out, ROOT / "docs" / "augmentation" / f"{name}.jpg")
    )
    assert seen.shape == shown.shape
    # Another version of libjpeg rounds otherwise; another draw changes most of the picture.
    assert np.abs(seen - shown).mean() < 1


def test_what_each_operation_costs_is_printed_where_it_is_asked_for(tmp_path: Path) -> None:
    command = (CLASSIFY, PHOTOS / "cat.jpg", "--out", tmp_path / "sheet.png", "--epochs", 2)
    chain = ("--operation", "box", "--operation", "{op: invert, probability: 0}")
    assert "CPU ms" not in run(*command, *chain).stdout
    done = run(*command, *chain, "--cost")
    assert done.exit_code == 0, done.output
    heading, *rows = done.stdout.splitlines()[2:]
    assert heading == "CPU ms an image, of 2 made one at a time:"
    assert [row.rpartition(" ")[0].strip() for row in rows] == ["as served", "+ box", "+ invert", "in all"]
    # What never happens costs nothing; the parts make the whole, each rounded to a hundredth.
    figures = [float(row.split()[-1]) for row in rows]
    assert figures[2] == 0
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.03)


def test_samples_are_mixed_with_the_other_photos_as_a_loader_mixes_them(tmp_path: Path) -> None:
    marked = read_coco(COCO, images=PHOTOS)
    folder = tmp_path / "photos"
    folder.mkdir()
    for sample in marked.samples:
        shutil.copy(sample.path, folder)
    options = ("--operation", "mosaic", "--epochs", 2, "--cell", 128, "--seed", 3)
    sheet, done = sheet_of(tmp_path, SHAPES, folder, *options)
    assert len(done.stdout.splitlines()) == 2 * len(marked)
    assert re.search(r"cat\.jpg, epoch 1: sample 0 on \d+x\d+ at .* \+ sample 1 on", done.stdout)
    definition = Pipeline.from_file(SHAPES).preprocess.pixels()
    chain = Augmentation([{"op": "mosaic"}])
    shown = cells(sheet, 3, 128)
    with DetectionLoader(
        definition, marked, batch_size=len(marked), train=True, shuffle=False, seed=3, augmentation=chain
    ) as loader:
        for epoch in range(2):
            np.testing.assert_array_equal(shown[1 + epoch], next(iter(loader)).images[0].numpy())
            loader.reset()


def test_the_text_of_a_line_stands_below_each_of_its_pictures(tmp_path: Path) -> None:
    sheets = []
    shutil.copy(ROOT / "docs" / "augmentation" / "line.png", tmp_path)
    for text in ("Every draw", "Ein\nanderer Text"):
        line = {"path": "line.png", "lines": [{"box": [16, 24, 345, 71], "text": text}]}
        (tmp_path / "lines.jsonl").write_text(json.dumps(line))
        options = ("--lines", tmp_path / "lines.jsonl", "--epochs", 2, "--operation", "warp")
        sheet, done = sheet_of(tmp_path, ROOT / "pipelines" / "read.yaml", tmp_path / "line.png", *options)
        assert len(done.stdout.splitlines()) == 2
        sheets.append(sheet)
    one, other = sheets
    rows, columns = (one != other).any(axis=2).nonzero()
    assert rows.min() > len(one) / 2
    third = one.shape[1] / 3
    assert {int(column // third) for column in columns.tolist()} == {0, 1, 2}


def test_lines_of_text_are_shown_by_the_stage_that_reads_them(tmp_path: Path) -> None:
    line, listed = ROOT / "docs" / "augmentation" / "line.png", ROOT / "docs" / "augmentation" / "line.jsonl"
    out = tmp_path / "sheet.png"
    read = (ROOT / "pipelines" / "read.yaml", line, "--lines", listed, "--out", out)
    done = run(*read, "--operation", "warp", "--epochs", 2)
    assert done.exit_code == 0, done.output
    assert re.search(r"line\.jsonl.* 'Every draw is a value', epoch 1: corners .*; warp of \d+x2 points", done.stdout)
    for more, code, message in (
        (("--operation", "flip"), 2, "flip cannot vary lines"),
        (("--boxes", COCO), 2, "--boxes and --lines exclude each other"),
    ):
        refused = run(*read, *more)
        assert refused.exit_code == code
        assert message in refused.output
    wrong = run(CLASSIFY, line, "--lines", listed, "--out", out)
    assert wrong.exit_code == 2
    assert "no stage begins with region" in wrong.output
    other = run(*read[:1], PHOTOS / "cat.jpg", *read[2:])
    assert other.exit_code == 2
    assert "lists no line of the photos" in other.output
