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


def copied(folder: Path, *photos: Path) -> Path:
    folder.mkdir(parents=True)
    for photo in photos:
        shutil.copy(photo, folder)
    return folder


def assert_of_epochs(shown: list[np.ndarray], loader: ImageLoader | DetectionLoader) -> None:
    """Each is the first sample of an epoch."""
    with loader:
        for cell in shown:
            np.testing.assert_array_equal(cell, next(iter(loader)).images[0].numpy())
            loader.reset()


def test_the_sheet_shows_what_a_loader_gives(tmp_path: Path) -> None:
    folder = copied(tmp_path / "photos", PHOTOS / "cat.jpg")
    chain = "operations:\n- {op: box}\n- {op: flip}\n- {op: trivial_augment}\n"
    (tmp_path / "chain.yaml").write_text(chain)
    options = ("--augmentation", tmp_path / "chain.yaml", "--epochs", 3, "--seed", 5)
    sheet, done = sheet_of(tmp_path, CLASSIFY, folder, *options)
    assert len(done.stdout.splitlines()) == 3
    assert "cat.jpg, epoch 0: " in done.stdout
    definition, varied = Pipeline.from_file(CLASSIFY).preprocess.pixels(), Augmentation.from_yaml(chain)
    served, *trained = cells(sheet, 4, 224)
    assert_of_epochs([served], ImageLoader(definition, folder, batch_size=1))
    assert_of_epochs(trained, ImageLoader(definition, folder, batch_size=1, train=True, seed=5, augmentation=varied))


def test_samples_are_mixed_with_the_other_photos_as_a_loader_mixes_them(tmp_path: Path) -> None:
    marked = read_coco(COCO, images=PHOTOS)
    folder = copied(tmp_path / "photos", *(sample.path for sample in marked.samples))
    options = ("--operation", "mosaic", "--epochs", 2, "--cell", 128, "--seed", 3)
    sheet, done = sheet_of(tmp_path, SHAPES, folder, *options)
    assert len(done.stdout.splitlines()) == 2 * len(marked)
    assert re.search(r"cat\.jpg, epoch 1: sample 0 on \d+x\d+ at .* \+ sample 1 on", done.stdout)
    order = {"batch_size": len(marked), "train": True, "shuffle": False, "seed": 3}
    loader = DetectionLoader(
        Pipeline.from_file(SHAPES).preprocess.pixels(), marked, **order, augmentation=Augmentation([{"op": "mosaic"}])
    )
    assert_of_epochs(cells(sheet, 3, 128)[1:], loader)


def test_boxes_are_drawn(tmp_path: Path) -> None:
    operations = ("--operation", "scale_jitter", "--operation", "{op: rotation, degrees: [-30, 30]}")
    command = (SHAPES, PHOTOS / "cat.jpg", PHOTOS / "coffee.jpg", *operations)
    one, other = (sheet_of(tmp_path, *command, *more)[0] for more in ((), ("--boxes", COCO)))
    assert one.shape == other.shape
    assert 0 < (one != other).any(axis=2).mean() < 0.3


def with_keypoints(folder: Path, *names: list[str]) -> Path:
    """The photos' boxes, of which the first has a keypoint, and the first categories names of theirs."""
    content = json.loads(COCO.read_text())
    for category, own in zip(content["categories"], names, strict=False):
        category["keypoints"] = own
    content["annotations"][0]["keypoints"] = [225, 150, 2, *([0, 0, 0] * (len(names[0]) - 1))]
    (folder / "marked.json").write_text(json.dumps(content))
    return folder / "marked.json"


def test_keypoints_are_drawn_where_they_can_be_read(tmp_path: Path) -> None:
    command = (CLASSIFY, PHOTOS / "cat.jpg", "--epochs", 1, "--boxes")
    boxes, _ = sheet_of(tmp_path, *command, COCO)
    drawn, _ = sheet_of(tmp_path, *command, with_keypoints(tmp_path, ["nose", "tail"]))
    rows, columns = (cells(boxes, 2, 224)[0] != cells(drawn, 2, 224)[0]).any(axis=2).nonzero()
    # The middle of the photo is that of the crop, and a dot is some 5 pixels wide.
    assert abs(rows.mean() - 112) < 2
    assert abs(columns.mean() - 112) < 2
    assert 8 < len(rows) < 50
    sheet, done = sheet_of(tmp_path, *command, with_keypoints(tmp_path, ["nose"], ["tail"]))
    assert re.search("keypoints are not drawn: .*have other keypoints each", done.stderr)
    np.testing.assert_array_equal(sheet, boxes)


def test_photos_in_folders_below_are_found_by_the_path_that_the_file_names(tmp_path: Path) -> None:
    content = json.loads(COCO.read_text())
    for image in content["images"]:
        image["file_name"] = f"train/{image['file_name']}"
    below, out = tmp_path / "below.json", tmp_path / "sheet.png"
    below.write_text(json.dumps(content))
    cat = copied(tmp_path / "photos" / "train", PHOTOS / "cat.jpg") / "cat.jpg"
    places = ((PHOTOS / "cat.jpg", COCO), (tmp_path / "photos", below))
    sheets = [sheet_of(tmp_path, CLASSIFY, photos, "--boxes", file, "--epochs", 1)[0] for photos, file in places]
    np.testing.assert_array_equal(*sheets)
    Image.new("RGB", (20, 30)).save(cat)
    for photos, code, message in (
        (PHOTOS / "cat.jpg", 2, "below.json lists none of the photos"),
        (tmp_path / "photos", 1, "cat.jpg: the picture has 20x30 pixels after its EXIF orientation"),
    ):
        refused = run(CLASSIFY, photos, "--boxes", below, "--out", out)
        assert refused.exit_code == code
        assert message in refused.output


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
            "rotation moves pixels, so it must come before mosaic",
        ),
        (("--operation", "box", "--augmentation", "x.yaml"), 2, "exclude each other"),
        (("--augmentation", "missing.yaml"), 2, "missing.yaml: No such file or directory"),
        (("--boxes", "missing.json"), 2, "missing.json"),
        (("--boxes", str(COCO), "--operation", "warp"), 2, "--operation: warp cannot vary boxes"),
        (("--operation", "speed"), 2, "speed cannot vary classes or boxes, only clips"),
        (("missing.jpg",), 1, "missing.jpg: No such file or directory"),
        (("--masks", "masks", "--lines", "lines.jsonl"), 2, "--masks and --lines exclude each other"),
        (("--boxes", str(COCO), "--lines", "lines.jsonl"), 2, "--boxes and --lines exclude each other"),
        (("--out", "none/sheet.png"), 2, "sheet.png: No such file or directory"),
        (("--cost", "--lines", "lines.jsonl"), 2, "--cost is of pictures, not of --lines"),
        ((str(ROOT / "README.md"),), 1, "README.md: bad image"),
    ],
)
def test_errors_say_what_to_change(tmp_path: Path, options: tuple[str, ...], code: int, message: str) -> None:
    done = run(CLASSIFY, PHOTOS / "cat.jpg", "--out", tmp_path / "sheet.png", *options)
    assert done.exit_code == code, done.output
    assert message in done.output
    assert not (tmp_path / "sheet.png").exists()


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
    committed = ROOT / "docs" / "augmentation" / f"{name}.jpg"
    seen, shown = (np.asarray(Image.open(path), np.int16) for path in (out, committed))
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


LINE = ROOT / "docs" / "augmentation" / "line.png"
READ = ROOT / "pipelines" / "read.yaml"


def test_lines_of_text_are_shown_by_the_stage_that_reads_them(tmp_path: Path) -> None:
    """The text stands below each of the line's pictures."""
    listed, sheets = tmp_path / "lines.jsonl", []
    shutil.copy(LINE, tmp_path)
    for text in ("Every draw", "Ein\nanderer Text"):
        listed.write_text(json.dumps({"path": LINE.name, "lines": [{"box": [16, 24, 345, 71], "text": text}]}))
        command = (READ, tmp_path / LINE.name, "--lines", listed, "--epochs", 2, "--operation", "warp")
        sheet, done = sheet_of(tmp_path, *command)
        assert len(done.stdout.splitlines()) == 2
        said = rf"lines\.jsonl.* {re.escape(repr(text))}, epoch 1: corners .*; warp of \d+x2 points"
        assert re.search(said, done.stdout)
        sheets.append(sheet)
    one, other = sheets
    rows, columns = (one != other).any(axis=2).nonzero()
    assert rows.min() > len(one) / 2
    third = one.shape[1] / 3
    assert {int(column // third) for column in columns.tolist()} == {0, 1, 2}
    for pipeline, photo, operation, message in (
        (READ, tmp_path / LINE.name, "flip", "flip cannot vary lines"),
        (READ, PHOTOS / "cat.jpg", "warp", "lists no line of the photos"),
        (CLASSIFY, tmp_path / LINE.name, "warp", "no stage begins with region"),
    ):
        refused = run(pipeline, photo, "--lines", listed, "--operation", operation, "--out", tmp_path / "none.png")
        assert refused.exit_code == 2
        assert message in refused.output
