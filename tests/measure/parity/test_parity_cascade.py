"""Parity of a cascade: by stage, on the regions that the reference finds, and from picture to answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from builds import build
from cascades import write_things
from client_fakes import reading
from own_pipeline import Own, words
from PIL import Image, ImageDraw
from shared_server import READ, SharedServer

from benchmarks.reading.lettering import font
from onestream.measure.parity.answers import Answers, Tally
from onestream.measure.parity.cascade.ways import OpenCvWay, OurWay
from onestream.measure.parity.report import Report, SubjectReport
from onestream.measure.parity.run import CannotCompare
from onestream.measure.parity.subject import Outputs
from onestream.preprocess import Definition, Limits, Output
from onestream.preprocess.backends.finish import CpuFromPicture
from onestream.preprocess.geometry import quads_of
from onestream.preprocess.operations import Region

ROOT = Path(__file__).parents[3]
PHOTOS = [str(ROOT / "examples" / "photos" / f"{name}.jpg") for name in ("cat", "rocket")]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Own:
    """Bright cells are found, and each is named by its strongest channel."""
    folder = tmp_path_factory.mktemp("things")
    networks = write_things(folder, region={"margin": 0.2})
    build(folder / "things.yaml", folder=folder / "repository", onnx_files=networks)
    return Own(folder / "things.yaml", folder / "repository")


def by_name(report: Report) -> dict[str, SubjectReport]:
    return {subject.name: subject for subject in report.subjects}


def test_every_stage_and_the_whole_are_compared(things: Own) -> None:
    report = things.compare(images=PHOTOS, against=["opencv"])
    assert report.within
    assert list(report.stages) == ["find", "name"]
    find, name = by_name(report.stages["find"]), by_name(report.stages["name"])
    assert list(find) == list(name) == list(by_name(report.whole)) == ["dali (cpu)", "OpenCV"]
    assert list(find["dali (cpu)"].stages) == ["decode", "resize", "crop", "normalize"]
    regions = report.stages["name"]
    assert (regions.kind, regions.photos[0]) == ("region", f"{PHOTOS[0]}, region 1")
    assert len(regions.photos) == find["dali (cpu)"].boxes.expected > 20
    assert list(name["dali (cpu)"].stages) == ["region", "resize", "crop", "normalize"]
    assert name["dali (cpu)"].predictions == len(regions.photos)
    # A box is a slice of the same decoded picture for both; OpenCV resizes it by another filter.
    assert name["dali (cpu)"].stages["region"].max == name["OpenCV"].stages["region"].max == 0
    assert name["dali (cpu)"].stages["resize"].max <= 1 < name["OpenCV"].stages["resize"].max
    assert (name["dali (cpu)"].judged, name["OpenCV"].judged) == (True, False)
    for subject in report.whole.subjects:
        assert subject.stages == {}
        assert subject.regions.expected == len(regions.photos)
        assert subject.regions.least_iou is not None
        assert subject.texts is None
    ours, theirs = (subject.regions for subject in report.whole.subjects)
    assert ours.lost + ours.added + (ours.otherwise or 0) < theirs.lost + theirs.added + (theirs.otherwise or 0)


def test_the_command_shows_stage_after_stage(things: Own, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = ("--json", tmp_path / "parity.json", "--heatmap", tmp_path / "map.png")
    text = words(things.parity(*PHOTOS, "--against", "opencv", "--min-ap", "1", *written))
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["map-find.png", "map-name.png"]
    places = [text.index(title) for title in ("things_find, def", "things_name, def", "things, from picture to answer")]
    assert places == sorted(places)
    for part in ("boxes lost", "region 0 0.000", "regions lost", "overlap (IoU)", "other answer", "AP 1.000"):
        assert part in text
    assert "At resize, OpenCV" in text
    written = json.loads((tmp_path / "parity.json").read_text())
    assert (written["pipeline"], written["within"], list(written["stages"])) == ("things", True, ["find", "name"])
    assert written["stages"]["name"]["subjects"][0]["within"]
    assert written["whole"]["subjects"][0]["regions"]["expected"] > 20


def test_a_backend_that_cuts_otherwise_is_outside(things: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CpuFromPicture._sample

    def shifted(self: CpuFromPicture, pixels: Any) -> Any:
        return right(self, np.roll(pixels, 3, axis=1) if self.definition.region else pixels)

    monkeypatch.setattr(CpuFromPicture, "_sample", shifted)
    assert "dali (cpu) departs by" in words(things.parity(*PHOTOS, "--against", "none", status=1))
    report = things.compare(images=PHOTOS, against=["none"])
    (subject,) = report.stages["name"].subjects
    assert not subject.within
    assert not subject.stages["region"].within
    assert report.stages["find"].within


def test_a_stage_that_nothing_reaches_is_told(things: Own, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "black.png")
    report = things.compare(images=[str(tmp_path / "black.png")], against=["none"])
    assert list(report.stages) == ["find"]
    assert report.not_compared["stage name"] == "no region of these photos reaches it"
    assert report.within


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clips": [Path("clip.mp4")]}, "things is a cascade, which is compared on photos; got --video clip.mp4"),
        ({"against": ["rapidocr"]}, "--against rapidocr: of this cascade allowed are torchvision, opencv, pillow, and"),
        ({"against": ["mine:transform"]}, "--against mine:transform: a transform takes photos"),
    ],
)
def test_what_a_cascade_is_not_compared_with_is_named(things: Own, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotCompare, match=reason):
        things.compare(images=PHOTOS, **options)


def test_what_was_not_built_or_otherwise_is_named(things: Own, tmp_path: Path) -> None:
    described = yaml.safe_load(things.file.read_text())
    described["stages"]["name"]["preprocess"]["operations"][0]["margin"] = 0.3
    other = Own(tmp_path / "things.yaml", things.repository)
    other.file.write_text(yaml.safe_dump(described, sort_keys=False))
    with pytest.raises(CannotCompare, match=r"stage name was built with another definition .*margin: 0.2 != 0.3"):
        other.compare(images=PHOTOS)
    with pytest.raises(CannotCompare, match="onestream build writes it"):
        Own(things.file, tmp_path).compare(images=PHOTOS)


def lines(*found: tuple[str, int]) -> Outputs:
    """An answer of text, by line and how far down it is; each is 50 pixels wide and 10 high."""
    return reading(*((text, 1, ((0, y), (50, y), (50, y + 10), (0, y + 10))) for text, y in found))


def test_lines_are_paired_by_place_and_their_texts_compared() -> None:
    tally = Tally(Answers(kind="reading", section="regions"))
    tally.add("a.jpg", "", lines(("EXIT", 0), ("Gate B7", 50), ("gone", 90)), lines(("EXIT", 1), ("Gaze 87", 50)))
    tally.add("b.jpg", "", lines(), lines(("more", 0)))
    verdicts = tally.verdicts()
    figures = verdicts.regions
    assert (figures.expected, figures.lost, figures.added, figures.otherwise) == (3, 1, 1, 1)
    # A line 10 pixels high that is one pixel lower: 9 of 11.
    assert figures.least_iou == pytest.approx(9 / 11, abs=1e-6)
    assert figures.mean_iou == pytest.approx((9 / 11 + 1) / 2, abs=1e-6)
    assert verdicts.texts.model_dump() == {"lines": 2, "equal": 1, "edits": 2, "characters": 11}
    told = [(flip.photo, flip.expected, flip.got) for flip in verdicts.flips]
    assert told == [("a.jpg", "Gate B7", "Gaze 87"), ("a.jpg", "gone", "nothing"), ("b.jpg", "nothing", "more")]


def test_the_usual_way_takes_corners_for_the_middles_of_pixels() -> None:
    """What is upright it cuts as we do; what is turned lies up to half a pixel beside."""
    pixels = np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    definition = Definition(operations=[Region(of="find", shape="quad"), Output(layout="NHWC", dtype="uint8")])
    ours, usual = (way.from_picture(definition) for way in (OurWay("reference", Limits()), OpenCvWay(Limits())))
    upright = quads_of(np.array([[10, 5, 40, 25]], np.float32))
    (one,), (other,) = (way.run(pixels, upright) for way in (ours, usual))
    np.testing.assert_array_equal(one, pixels[5:25, 10:40])
    np.testing.assert_array_equal(other, one)
    turned = np.array([[[30, 5], [45, 15], [35, 30], [20, 20]]], np.float32)
    (one,), (other,) = (way.run(pixels, turned) for way in (ours, usual))
    assert one.shape == other.shape
    assert np.abs(one.astype(int) - other.astype(int)).max() > 10


@pytest.mark.needs_triton
@pytest.mark.slow
@pytest.mark.serves(READ)
def test_reading_is_compared_with_a_server_opencv_and_rapidocr(server: SharedServer, tmp_path: Path) -> None:
    """PP-OCR's networks on lines that are level and turned: what is written is read by every way."""
    pytest.importorskip("rapidocr")
    texts = ("Rusty bolts", "42 boxes of nuts")
    page = Image.new("RGB", (700, 300), (235, 230, 220))
    for number, text in enumerate(texts):
        ImageDraw.Draw(page).text((60, 50 + 120 * number), text, (30, 30, 60), font("DejaVu Sans", 48))
    page.save(tmp_path / "level.png")
    page.rotate(10, Image.Resampling.BICUBIC, expand=True, fillcolor=(235, 230, 220)).save(tmp_path / "turned.png")
    reading = Own(server.pipeline_file("read"), server.repository)
    pages = [str(tmp_path / f"{name}.png") for name in ("level", "turned")]
    report = reading.compare(images=pages, url=server.grpc_address, against=["opencv", "rapidocr"])
    assert report.within
    for stage in report.stages.values():
        # Its networks are asked with the reference's own pixels.
        served = by_name(stage)["server"]
        assert (served.flips, served.photos) == ([], stage.compared)
    find, turn, text = (by_name(one) for one in report.stages.values())
    assert list(find) == list(turn) == list(text) == ["dali (cpu)", "server", "OpenCV"]
    for subject in find.values():
        assert (subject.regions.expected, subject.regions.lost, subject.regions.otherwise) == (4, 0, None)
    # Rectified in the same whole numbers by us; by OpenCV with corners at the middles of pixels.
    assert turn["dali (cpu)"].stages["region"].max == 0 < turn["OpenCV"].stages["region"].mean
    same = {"lines": 4, "equal": 4, "edits": 0, "characters": 2 * sum(map(len, texts))}
    assert {name: one.texts.model_dump() for name, one in text.items() if one.texts} == dict.fromkeys(text, same)
    whole = by_name(report.whole)
    assert list(whole) == ["dali (cpu)", "server", "OpenCV", "rapidocr"]
    assert whole["server"].forms == ["read", "read_fused"]
    for name, subject in whole.items():
        times = len(subject.forms) or 1
        assert subject.texts is not None, name
        assert subject.texts.model_dump() == {key: value * times for key, value in same.items()}, name
