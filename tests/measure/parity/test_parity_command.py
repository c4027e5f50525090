"""``onestream parity`` as a user runs it: output, files, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from own_pipeline import Own, a_report, words
from PIL import Image
from proxies import refused

from onestream.measure.parity import run as run_module
from onestream.measure.parity.report import Flip, Report, SubjectReport
from onestream.measure.parity.served import Served
from onestream.measure.parity.subject import Photo
from onestream.serving.built.certificate import STAGES

ROOT = Path(__file__).parents[3]
PHOTOS = ROOT / "examples" / "photos"


def test_all_within_exits_with_0_and_says_so(own: Own, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = own.parity("--against", "pillow", "--json", file)
    for part in ("dali (cpu)", "decode", "resize", "crop", "normalize", "logits", "top-1", "Pillow", "not judged"):
        assert part in result.stdout
    text = words(result)
    assert "dali (cpu) stays within the tolerances, no difference at all; none of 6 predictions flips." in text
    assert "At resize, Pillow departs by" in text
    assert "antialiasing" in text
    report = json.loads(file.read_text())
    assert report["within"] is True
    assert report["definition_digest"] == own.definition.digest
    assert len(report["photos"]) == 6
    dali, pillow = report["subjects"]
    assert [subject["name"] for subject in report["subjects"]] == ["dali (cpu)", "Pillow"]
    assert list(dali["stages"]) == list(STAGES)
    assert dali["logits"]["max"] == dali["stages"]["crop"]["max"] == 0
    assert (dali["predictions"], dali["flips"]) == (6, [])
    assert pillow["stages"]["crop"]["max"] > 10
    flips = len(pillow["flips"])
    assert (f"flips {flips} of 6 predictions" if flips else "flips none of 6 predictions") in text
    assert report["versions"]["numpy"] == np.__version__


def test_a_network_of_another_definition_exits_with_1_and_names_the_stage(own: Own) -> None:
    own.change(1, filter="bicubic")
    text = words(own.parity("--against", "none", status=1))
    for part in (
        "operations[1].filter: 'bilinear' != 'bicubic'",
        "Outside the tolerances: the built network's definition departs by",
        "at resize (another filter",
        own.definition.digest[:12],
        "outside: allowed for 8-bit files are 1 at most",
    ):
        assert part in text
    own.change(1, filter="bilinear")
    own.change(3, std=[0.25, 0.25, 0.26])
    result = own.parity("--against", "none", "--json", "-", status=1)
    built, dali = json.loads(result.stdout)["subjects"]
    assert (built["stages"]["crop"]["max"], built["stages"]["normalize"]["within"]) == (0, False)
    assert dali["within"]


def test_bad_images_are_listed_and_do_not_stop_the_others(own: Own, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "cut.jpg").write_bytes((PHOTOS / "cat.jpg").read_bytes()[:3000])
    images = [tmp_path / "text.jpg", tmp_path / "cut.jpg", tmp_path / "absent.jpg"]
    text = words(own.parity(*images, PHOTOS / "cat.jpg", "--against", "none"))
    for part in ("Bad images", "got text; allowed: JPEG", "cut short", "absent.jpg: No such file", "on 1 photo."):
        assert part in text
    assert "none of the images can be used" in own.parity(*images, "--against", "none", status=2).stderr
    assert "the first argument is the pipeline file" in refused("parity", str(PHOTOS / "cat.jpg"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--against", "opencl"], "--against opencl: allowed are torchvision, opencv, pillow, MODULE:NAME"),
        (["--against", "json:absent"], "no attribute 'absent'"),
        (["--against", "json:decoder"], "expected a function or a transform"),
        (["--url", "127.0.0.1:1"], "no Triton answers at 127.0.0.1:1"),
        (["--url", "127.0.0.1:1", "--serve"], "exclude each other"),
        (["absent/*.jpg"], "absent/*.jpg: No such file"),
        (["--json", "/proc/nowhere/file"], "--json: "),
        (["--heatmap", "/proc/nowhere/file.png"], "No such file"),
    ],
)
def test_what_cannot_be_done_exits_with_2_and_one_line(own: Own, arguments: list[str], reason: str) -> None:
    arguments = arguments if "--against" in arguments else [*arguments, "--against", "none"]
    result = own.parity(*arguments, status=2)
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert isinstance(result.exception, SystemExit)


def test_without_a_network_pixels_are_still_compared_and_where_nothing_is_judged_nothing_passes(own: Own) -> None:
    (own.repository / "mine_model" / "1" / "model.onnx").unlink()
    result = own.parity("--against", "none")
    assert "logits, top-1: no" in result.stdout
    assert "onestream build" in words(result)
    assert "flipped" not in result.stdout
    # DALI refuses a second resize; the report is shown all the same.
    own.change(2, op="resize", mode="exact", size=[32, 32])
    result = own.parity("--against", "pillow", status=2)
    assert "Nothing is judged" in words(result)
    assert "dali does one resize" in result.stderr


def test_a_transform_of_ones_own(own: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parity_own_transforms.py").write_text(
        "import numpy as np\n"
        "def right(image, mean=0.5):\n"
        "    scale = 40 / min(image.size)\n"
        "    image = image.resize((int(image.width * scale), int(image.height * scale)), 2)\n"
        "    left, top = round((image.width - 32) / 2), round((image.height - 32) / 2)\n"
        "    pixels = np.asarray(image.crop((left, top, left + 32, top + 32)), np.float32)\n"
        "    return ((pixels / 255 - mean) / np.float32(0.25)).astype(np.float32).transpose(2, 0, 1)\n"
        "def wrong(image):\n"
        "    return right(image, mean=0.4)\n"
        "def broken(image):\n"
        "    raise ValueError('not this one')\n"
    )
    monkeypatch.chdir(tmp_path)
    names = [f"parity_own_transforms:{name}" for name in ("right", "wrong", "broken")]
    result = own.parity(*[word for name in names for word in ("--against", name)], "--json", "-")
    _, right, wrong, broken = json.loads(result.stdout)["subjects"]
    assert right["stages"]["normalize"]["max"] == 0
    # 0.1 of the range is 25.5 levels; float32 rounds both sides.
    assert wrong["stages"]["normalize"]["mean"] == pytest.approx(25.5, abs=1e-3)
    assert (right["logits"]["max"], right["predictions"]) == (0, 6)
    assert wrong["logits"]["max"] > 0.01
    assert set(broken["refused"].values()) == {"ValueError: not this one"}


@pytest.mark.slow
def test_the_heat_map_shows_the_photos_that_differ_most(own: Own, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "heat.png"
    own.parity("--against", "pillow", "--heatmap", file)
    with_pillow = np.asarray(Image.open(file).convert("RGB")).astype(int)
    own.parity(PHOTOS / "cat.jpg", "--against", "none", "--heatmap", file)
    alone = np.asarray(Image.open(file).convert("RGB")).astype(int)
    # Four of the six photos and a subject more: taller and wider.
    assert with_pillow.shape[0] > 2 * alone.shape[0]
    assert with_pillow.shape[1] > alone.shape[1]
    # Bright colours of the map stand for many levels; the colour bar alone has some in both.
    bright = [int(((image[..., 0] > 220) & (image[..., 2] < 120)).sum()) for image in (with_pillow, alone)]
    assert bright[0] > 2 * bright[1] > 0


def test_a_flip_fails_only_where_that_is_asked_for(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    flip = Flip(photo="a.jpg", form="", expected="cat", got="dog")

    def flipped(*, judged: bool) -> Report:
        subject = SubjectReport(
            name="dali (cpu)", judged=judged, photos=1, stages={}, other_shape={}, refused={}, logits=None,
            predictions=1, forms=[], flips=[flip],
        )  # fmt: skip
        return a_report([subject], photos=["a.jpg"])

    monkeypatch.setattr(run_module, "run", lambda _options, **_more: flipped(judged=True))
    assert "cat → dog" in own.parity().stdout
    own.parity("--fail-on-flip", status=1)
    theirs, ours = flipped(judged=False).subjects[0], flipped(judged=True).subjects[0]
    both = flipped(judged=True).model_copy(update={"subjects": [ours.model_copy(update={"flips": []}), theirs]})
    monkeypatch.setattr(run_module, "run", lambda _options, **_more: both)
    own.parity("--fail-on-flip")


OPTIONAL = ("torch", "torchvision", "cv2", "matplotlib")


@pytest.mark.slow
def test_nothing_optional_is_needed_unless_asked_for(own: Own) -> None:
    """In a process of its own, so that no other test has imported them before."""
    code = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL}); from onestream.cli.main import app; app()"
    arguments = ["parity", str(own.file), str(PHOTOS / "cat.jpg"), "--repository", str(own.repository)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Pillow" in done.stdout
    assert "OpenCV" not in done.stdout
    assert "torchvision" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--against", "opencv"], "pip install opencv-python-headless"),
        (["--against", "torchvision"], "pip install torchvision"),
        (["--against", "none", "--heatmap", "heat.png"], "pip install -e '.[demo]'"),
    ],
)
def test_what_is_asked_for_and_missing_is_named_with_its_command(
    own: Own, monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: str
) -> None:
    for name in OPTIONAL:
        # None in sys.modules tells Python that a module is not there; loaded submodules would hide it.
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)
    result = own.parity(*arguments, status=2)
    assert command in result.stderr
    assert isinstance(result.exception, SystemExit)


class _Sized:
    """A client of a server with a network that takes the picture's size, and ``PIPELINE_preprocess``."""

    inputs: ClassVar = {"sized": ["image"], "sized_model": ["pixels", "image_size"], "sized_preprocess": ["image"]}

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked: list[str] = []

    def server_info(self) -> None:
        pass

    def is_ready(self, model: str) -> bool:
        return model in self.inputs

    def model_config(self, model: str) -> dict[str, Any]:
        return {"name": model, "input": [{"name": name} for name in self.inputs[model]]}

    def infer(self, _model: str, given: dict[str, Any]) -> dict[str, Any]:
        assert given.keys() == {"image"}
        return {"pixels": np.zeros((1, 2, 2, 3), np.uint8)}


def test_a_served_model_that_takes_more_than_a_picture_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refuse every photo, which would stand in the report as a difference."""
    monkeypatch.setattr("onestream.measure.parity.served.Client", _Sized)
    found = Served("sized", "host:1")
    assert found.left_out == {"sized_model": ["image_size"]}
    seen = found.observe(Photo("a.png", b"png", "plain"))
    assert (seen.outputs, list(seen.answers), list(seen.stages)) == (None, ["sized"], ["crop"])
