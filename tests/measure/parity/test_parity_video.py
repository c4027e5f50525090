"""``onestream parity --video``: how clips become RGB, by our loader and by libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clip_files import begin_at, turn, write_video
from own_pipeline import OPERATIONS, Own, a_report, words

from onestream.measure.parity.bench import Bench
from onestream.measure.parity.explain import explain
from onestream.measure.parity.report import Report, SubjectReport
from onestream.measure.parity.video.frames import Frame, read_clips
from onestream.measure.parity.video.gathered import Loader
from onestream.preprocess import Definition, Limits
from onestream.preprocess.video import ColorRule
from onestream.serving.built.certificate import STAGES
from onestream.serving.stream_options import VideoOptions

DEFINITION = Definition.model_validate({"operations": OPERATIONS})
LOADER = "loader: pyav (cpu)"


def a_clip(
    path: Path, *, matrix_tag: int = 2, codec: str = "libx264", size_hw: tuple[int, int] = (192, 256), **more: Any
) -> Path:
    """12 frames without a tag, unless they are given one."""

    def tagged(stream: Any) -> None:
        stream.codec_context.colorspace = matrix_tag

    return write_video(path, codec, count=12, size_hw=size_hw, change=tagged, **more)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", options={"preset": "ultrafast", "g": "6"})


def subjects(report: Report) -> dict[str, SubjectReport]:
    return {subject.name: subject for subject in report.subjects}


def test_an_hd_clip_without_tags_is_the_same_for_the_loader_and_for_libraries(own: Own, tmp_path: Path) -> None:
    clip = a_clip(tmp_path / "clip.mp4", size_hw=(720, 1280), options={"preset": "ultrafast"})
    report = own.compare(clips=[clip], frames=2)
    assert report.within
    assert report.photos == [f"{clip}, frame {number}" for number in (0, 11)]
    assert report.colors == {str(clip): "bt601 (assumed), limited (assumed)"}
    found = subjects(report)
    ours = found.pop(LOADER)
    assert (list(ours.stages), ours.stages["decode"].max, ours.predictions) == (list(STAGES), 0, 2)
    assert ours.stages["normalize"].max <= 1
    assert "PyAV" in found
    for library in found.values():
        assert not library.judged
        assert list(library.stages) == list(STAGES)
        assert all(figures.within for figures in library.stages.values()), library
        assert 0 < library.stages["decode"].max <= 3
    assert "by no more than another conversion of the same colours rounds or interpolates" in explain(report)
    assert "loader: dali (cpu)" in report.not_compared


def test_a_subject_with_another_matrix_is_outside_and_blamed_for_it(clip: Path) -> None:
    clips, _ = read_clips([clip], options=VideoOptions(), most=2, limits=Limits())
    frames = [Frame(clips[0], number) for number in clips[0].numbers]
    right, wrong = (Loader(DEFINITION, ColorRule(matrix=m), backend="pyav", name=m) for m in ("bt601", "bt709"))
    reference = Loader(DEFINITION, ColorRule(), backend="reference")
    measured, bad = Bench(DEFINITION, reference, None).measure([right, wrong], frames)
    assert bad == {}
    assert [one.within for one in measured] == [True, False]
    assert measured[1].stages["decode"].mean > 3
    report = a_report(measured, kind="frame", photos=[frame.name for frame in frames])
    assert "Outside the tolerances: bt709 departs by" in explain(report)
    assert "at decode (another matrix or range of colours, or a forgotten rotation)" in explain(report)


def test_who_ignores_a_tag_is_shown_and_not_judged(own: Own, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    path = a_clip(tmp_path / "tagged.mp4", matrix_tag=1, options={"preset": "ultrafast"})
    text = words(own.parity("--video", path, "--frames", 2, "--against", "opencv", "--against", "pyav"))
    for part in (
        "2 frames",
        "outside: allowed for 8-bit files are 3 at most, 1.3 on average",
        "tagged.mp4: bt709 (file), limited (",
        "PyAV differs by no more than another conversion of the same colours rounds",
        "At decode, OpenCV departs by",
    ):
        assert part in text


def test_a_pipeline_that_chooses_another_matrix_is_followed(own: Own, clip: Path) -> None:
    own.rewrite(video={"color": {"matrix": "bt709"}, "sampling": {"stride": 5}})
    report = own.compare(clips=[clip], against=["pyav"])
    assert report.within
    assert report.photos == [f"{clip}, frame {number}" for number in (0, 5, 10)]
    assert report.colors == {str(clip): "bt709 (chosen), limited (assumed)"}
    assert not subjects(report)["PyAV"].stages["decode"].within


def test_dali_takes_part_where_it_decodes_the_clip(own: Own, tmp_path: Path) -> None:
    path = a_clip(tmp_path / "clip.webm", codec="libvpx", options={"deadline": "realtime", "threads": "1"})
    report = own.compare(clips=[path], frames=2, against=["none"])
    assert report.within
    ours, dali = report.subjects
    assert (ours.name, dali.name) == (LOADER, "loader: dali (cpu)")
    # The bars of light and dark have harder edges than photos.
    assert (dali.stages["decode"].within, dali.stages["crop"].within) == (False, True)
    assert dali.allowed["decode"] == "for 8-bit files are 16 at most, 0.6 on average"


def test_turned_and_cut_clips_are_compared_as_displayed(own: Own, clip: Path, tmp_path: Path) -> None:
    """PyAV turns no frames, which is seen as another size."""
    turned = turn(tmp_path / "turned.mp4", clip, (0, 1, -1, 0))
    cut = begin_at(tmp_path / "cut.mp4", clip, 3)
    report = own.compare(clips=[turned, cut], frames=2, against=["pyav"])
    assert report.within
    assert subjects(report)["PyAV"].other_shape == {"decode": 2, "resize": 2}
    assert "PyAV gives another size: another matrix or range of colours, or a forgotten rotation" in explain(report)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--video", "absent.mp4"], "none of the clips can be used: absent.mp4: "),
        (["photo.jpg", "--video", "absent.mp4"], "one after the other; got images and absent.mp4"),
        (["--against", "json:loads"], "--against json:loads: a transform takes photos; with --video name pyav, opencv"),
        (["--against", "torchvision"], "--against torchvision: allowed are pyav, opencv, decord"),
        (
            ["--url", "127.0.0.1:1"],
            "the pipeline mine has no video section, so no server streams it: add the line `video: {}`",
        ),
    ],
)
def test_what_cannot_be_done_exits_with_2_and_one_line(own: Own, clip: Path, arguments: list[str], reason: str) -> None:
    named = arguments if "--video" in arguments else [*arguments, "--video", str(clip)]
    result = own.parity(*named, status=2)
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_bad_clip_is_listed_and_does_not_stop_the_others(own: Own, clip: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bad, heat, numbers = tmp_path / "text.mp4", tmp_path / "heat.png", tmp_path / "parity.json"
    bad.write_text("no video")
    written = ("--json", numbers, "--heatmap", heat)
    text = words(own.parity("--video", bad, "--video", clip, "--frames", 1, "--against", "pyav", *written))
    for part in ("Bad frames", "the video cannot be opened", "on 1 frame."):
        assert part in text
    report = json.loads(numbers.read_text())
    assert (report["kind"], report["photos"]) == ("frame", [f"{clip}, frame 0", str(bad)])
    assert report["subjects"][1]["allowed"]["decode"] == "for 8-bit files are 3 at most, 1.3 on average"
    assert heat.stat().st_size > 0


def test_frames_are_taken_at_even_distances(clip: Path) -> None:
    for most, expected in ((1, (0,)), (2, (0, 11)), (5, (0, 3, 6, 8, 11)), (99, tuple(range(12)))):
        (found,), _ = read_clips([clip], options=VideoOptions(), most=most, limits=Limits())
        assert found.numbers == expected
    with pytest.raises(ValueError, match="at least 1 frame"):
        read_clips([clip], options=VideoOptions(), most=0, limits=Limits())
    assert np.all(np.diff(found.numbers) > 0)
