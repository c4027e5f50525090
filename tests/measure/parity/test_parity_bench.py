"""The figures of a report are right, and it blames the stage where the difference was made."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torchvision_alone
from hypothesis import given
from hypothesis import strategies as st
from own_pipeline import OPERATIONS, a_report
from PIL import Image

from onestream.measure.parity import heatmap, photos
from onestream.measure.parity.bench import Bench
from onestream.measure.parity.explain import blame
from onestream.measure.parity.gathered import Backend
from onestream.measure.parity.library_baselines import OpenCv, PlainPillow, Torchvision
from onestream.measure.parity.own_code import OwnCode
from onestream.measure.parity.report import SubjectReport
from onestream.measure.parity.subject import Observation, Photo, Refused, Subject
from onestream.preprocess import Definition
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.tolerances import Comparison, Source
from onestream.serving.built.certificate import STAGES, Figures

DEFINITION = Definition.model_validate({"operations": OPERATIONS})
BUNDLED = photos.bundled()


@pytest.fixture(scope="module", autouse=True)
def _with_torchvision() -> None:
    torchvision_alone.load()


class Shifted(Subject):
    """The reference's own samples with some values moved at a stage, and so at all stages after it."""

    def __init__(self, stage: PreprocessingStage, levels: int, share: float) -> None:
        super().__init__("shifted", judged=True)
        self._reference = Backend(DEFINITION, backend="reference")
        self._stage, self._levels, self._share = stage, levels, share

    def observe(self, photo: Photo) -> Observation:
        stages = dict(self._reference.observe(photo).stages)
        for stage in STAGES[STAGES.index(self._stage) :]:
            sample = stages[stage]
            moved = np.arange(sample.size).reshape(sample.shape) < self._share * sample.size
            level = 1 / 255 / 0.25 if stage == "normalize" else 1
            # Away from the nearer end of the range, so that nothing is clipped.
            up = sample < (0 if stage == "normalize" else 128)
            step = np.where(up, self._levels, -self._levels) * level * moved
            stages[stage] = (sample + step).astype(sample.dtype)
        return Observation(stages)


class Refusing(Subject):
    def observe(self, photo: Photo) -> Observation:
        assert photo.data
        raise Refused("not today")


def measured(subject: Subject, images: list[Photo], definition: Definition = DEFINITION) -> SubjectReport:
    reference = Backend(definition, backend="reference")
    (report,), bad = Bench(definition, reference, None).measure([subject], images)
    assert bad == {}
    return report


def defined(*operations: dict[str, object]) -> Definition:
    return Definition.model_validate({"operations": operations})


@given(stage=st.sampled_from(STAGES), levels=st.integers(1, 100), share=st.sampled_from([0.01, 0.4, 1.0]))
def test_a_known_shift_gives_its_figures_and_its_stage(stage: PreprocessingStage, levels: int, share: float) -> None:
    report = measured(Shifted(stage, levels, share), BUNDLED[:1])
    for seen in STAGES:
        figures = report.stages[seen]
        if STAGES.index(seen) < STAGES.index(stage):
            assert (figures.max, figures.mean, figures.share_different) == (0, 0, 0)
            continue
        # normalize is float32: a level is 0.0157 there, and a value of up to 2 is exact to 2e-7, 2e-5 of a level.
        assert figures.max == pytest.approx(levels, abs=1e-4)
        assert figures.percentile_99_9 == pytest.approx(levels, abs=1e-4)
        # A sample has at least 3072 values, so a share is exact to one of them.
        assert figures.share_different == pytest.approx(share, abs=1 / 3072)
        assert figures.share_above_one == (0 if levels == 1 else figures.share_different)
        assert figures.mean == pytest.approx(levels * figures.share_different, abs=levels / 3072)
        allowed = levels == 1 and share <= 0.5 and seen != "decode"
        assert figures.within == allowed
    assert report.within == all(figures.within for figures in report.stages.values())
    found = blame(report)
    # One level in a hundredth of the values can be hidden by the mean over a stage's other number of values.
    assert found.stage == stage or levels * share < 0.1


def test_usual_code_departs_at_the_resize_only() -> None:
    for subject in (OpenCv(DEFINITION), PlainPillow(DEFINITION), Torchvision(DEFINITION, on_tensors=True)):
        report = measured(subject, BUNDLED)
        found = blame(report)
        assert (found.stage, report.stages["decode"].max) == ("resize", 0)
        assert report.stages["crop"].max > 10
        assert report.within, "code of others is not judged"
    equal = measured(Torchvision(DEFINITION), BUNDLED)
    assert blame(equal) is None
    assert equal.stages["normalize"].max == 0


OTHER_DEFINITIONS = {
    "letterbox": [{"op": "letterbox", "size": [48, 64]}],
    "gray, padded": [{"op": "resize", "mode": "fit", "size": [50, 40]}, {"op": "pad", "size": [60, 60], "value": 7}],
    "crop larger than the image": [
        {"op": "resize", "mode": "longer", "size": 33, "filter": "bicubic"},
        {"op": "center_crop", "size": [40, 20]},
    ],
    "no resize": [{"op": "center_crop", "size": [100, 90]}],
    "bgr, no resize": [{"op": "center_crop", "size": [100, 90]}],
    "bgr, letterbox": [{"op": "letterbox", "size": [48, 64]}],
    "NHWC, uint8": [
        {"op": "resize", "mode": "exact", "size": [30, 50], "filter": "nearest"},
        {"op": "output", "layout": "NHWC", "dtype": "uint8"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_DEFINITIONS)
def test_usual_code_runs_every_kind_of_definition(name: str) -> None:
    """Shape and border are the reference's, so what differs is the filter."""
    color = next((color for color in ("gray", "bgr") if color in name), "rgb")
    definition = defined({"op": "decode", "color": color}, *OTHER_DEFINITIONS[name])
    for subject in (
        Backend(definition, backend="dali"),
        Torchvision(definition),
        Torchvision(definition, on_tensors=True),
        OpenCv(definition),
        PlainPillow(definition),
    ):
        report = measured(subject, BUNDLED[:2], definition)
        assert (report.photos, report.refused, report.other_shape) == (2, {}, {}), subject.name
        assert list(report.stages) == list(STAGES)
        if subject.name in ("dali (cpu)", "torchvision"):
            assert report.stages["normalize"].max <= 1
        if "no resize" in name:
            assert report.stages["crop"].max == 0


def test_own_code_for_a_network_in_bgr_gets_a_picture_in_rgb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_bgr.py").write_text(
        "import numpy as np\n"
        "right = lambda image: np.asarray(image.resize((50, 40), 2))[:, :, ::-1]\n"
        "wrong = lambda image: np.asarray(image.resize((50, 40), 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    definition = defined(
        {"op": "decode", "color": "bgr"},
        {"op": "resize", "mode": "exact", "size": [40, 50]},
        {"op": "output", "layout": "NHWC", "dtype": "uint8"},
    )
    right, wrong = (
        measured(OwnCode(f"own_bgr:{name}", definition), BUNDLED[:2], definition) for name in ("right", "wrong")
    )
    assert right.stages["normalize"].max == 0
    assert wrong.stages["normalize"].max > 50


def test_a_heat_map_shows_pictures_in_their_own_colors_whatever_the_order(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    for color in ("rgb", "bgr"):
        definition = defined({"op": "decode", "color": color}, *OPERATIONS[1:])
        reference = Backend(definition, backend="reference")
        heatmap.draw(tmp_path / f"{color}.png", a_report([]), reference, [], BUNDLED[:2], color=definition.color)
        drawn.append(np.asarray(Image.open(tmp_path / f"{color}.png")))
    np.testing.assert_array_equal(*drawn)


def test_what_a_library_cannot_do_is_told_in_its_own_words() -> None:
    sharp = defined({"op": "decode"}, {"op": "resize", "mode": "exact", "size": [30, 50], "filter": "lanczos"})
    report = measured(Torchvision(sharp, on_tensors=True), BUNDLED[:1], sharp)
    assert report.photos == 0
    assert "lanczos" in report.refused[BUNDLED[0].name].lower()


@pytest.mark.parametrize("judged", [True, False])
def test_a_judged_subject_that_refuses_is_outside_and_another_is_not(judged: bool) -> None:
    report = measured(Refusing("any", judged=judged), BUNDLED[:1])
    assert (report.within, report.refused) == (not judged, {BUNDLED[0].name: "not today"})


def test_a_forgotten_orientation_is_blamed_on_the_decoder() -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(BUNDLED[0].data)).crop((0, 0, 300, 200)).save(file, "JPEG", exif=exif)
    turned = Photo("turned.jpg", file.getvalue(), "plain")
    for forgetful in (PlainPillow(DEFINITION), Torchvision(DEFINITION)):
        report = measured(forgetful, [turned])
        assert report.other_shape == {"decode": 1, "resize": 1}
        found = blame(report)
        assert (found.stage, found.levels) == ("decode", None)
    assert measured(OpenCv(DEFINITION), [turned]).stages["decode"].max == 0
    assert measured(Backend(DEFINITION, backend="dali"), [turned]).within


FORMS: dict[str, tuple[Source, str, str]] = {
    "jpeg": ("plain", "RGB", "JPEG"),
    "jpeg CMYK": ("converted", "CMYK", "JPEG"),
    "png": ("plain", "RGB", "PNG"),
    "png palette": ("plain", "P", "PNG"),
    "png 16-bit gray": ("converted", "I;16", "PNG"),
    "tiff": ("plain", "RGB", "TIFF"),
    "tiff palette": ("converted", "P", "TIFF"),
    "tiff 16-bit gray": ("converted", "I;16", "TIFF"),
}


@pytest.mark.parametrize("form", FORMS)
def test_how_a_photo_is_stored_decides_what_is_allowed(form: str) -> None:
    source, mode, kind = FORMS[form]
    image, file = Image.open(io.BytesIO(BUNDLED[0].data)), io.BytesIO()
    deep = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257 - 100)
    (deep if mode == "I;16" else image.convert(mode)).save(file, kind)
    assert photos.source_of(file.getvalue()) == source
    photo = Photo(form, file.getvalue(), source)
    assert measured(Backend(DEFINITION, backend="dali"), [photo]).within
    assert photos.source_of(b"no image") == "plain"


def test_bundled_photos_are_those_of_the_examples() -> None:
    """The report's photos come with the package, so they are copies; a change of one must reach the other."""
    examples = Path(__file__).parents[3] / "examples" / "photos"
    assert {photo.name: photo.data for photo in BUNDLED} == {
        file.name: file.read_bytes() for file in examples.glob("*.jpg")
    }


WORST = ("max", "percentile_99_9", "share_different", "share_above_one")
LEVELS, SHARES = st.floats(0, 255), st.floats(0, 1)
FIGURES = dict(zip(WORST, (LEVELS, LEVELS, SHARES, SHARES), strict=True), mean=LEVELS, within=st.booleans())


@given(st.lists(st.builds(Comparison, **FIGURES), min_size=1, max_size=5))
def test_a_row_is_the_worst_image_and_the_mean_of_means(comparisons: list[Comparison]) -> None:
    figures = Figures.of(comparisons)
    # Figures are rounded to six digits after the point.
    for name in WORST:
        assert getattr(figures, name) == pytest.approx(max(getattr(one, name) for one in comparisons), abs=1e-6)
    means = [one.mean for one in comparisons]
    assert figures.mean == pytest.approx(sum(means) / len(means), abs=1e-6)
    assert figures.within == all(one.within for one in comparisons)
