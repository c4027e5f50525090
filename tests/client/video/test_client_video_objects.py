"""Objects and text in a stream's frames: what the client reads, prints and draws, and how it tracks objects."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from client_fakes import detections, reading
from clip_files import every_frame, write_video
from fake_server import Behaviour, FakeServer
from stream_fakes import packets, run, source

from onestream.cli.stream.command import caption
from onestream.client import Client, Reading, Tensors, kinds
from onestream.client.kinds.detection import NO_TRACK, Detections
from onestream.client.video import EncodedFrame, FrameResult, Tracker, tracked
from onestream.wire.box_style import color_of

Box = tuple[float, float, float, float]


def moving(number: int) -> list[Box]:
    """Of every third frame none, else one that goes to the right, and of odd frames one more that stays."""
    if number % 3 == 2:
        return []
    boxes: list[Box] = [(10.0 + 2 * number, 20.0, 90.0 + 2 * number, 100.0)]
    return [*boxes, (150.5, 100.25, 250.0, 190.0)] if number % 2 else boxes


def cats(number: int) -> Tensors:
    return detections(*(("cat", 17, 0.9, box) for box in moving(number)), size_hw=(192, 256))


def texts(number: int) -> list[str]:
    """Of every third frame none, else its number and a sign, and what could command a terminal."""
    return [] if number % 3 == 2 else [f"frame {number}", "出口\x1b[31m"]


def signs(number: int) -> Tensors:
    quads = [((20, y), (200, y + 10), (198, y + 30), (18, y + 20)) for y in (30, 80)]
    found = zip(texts(number), quads, strict=False)
    return reading(*((text, 0.75, quad) for text, quad in found), size_hw=(192, 256))


@pytest.fixture
def detecting(server: FakeServer) -> FakeServer:
    server.behaviour = Behaviour(sees=cats)
    return server


def a_result(index: int, boxes: Sequence[Box], *, after_gap: bool = False) -> FrameResult:
    tensors = detections(*(("cat", 17, 0.9, box) for box in boxes), size_hw=(480, 640))
    found = kinds.read("detection", "detect_video", tensors, "", 1.0)
    return FrameResult(index, index, index / 30, 1.0, 1.0, {}, after_gap=after_gap, result=found)


def ids(result: FrameResult) -> list[int]:
    return [int(number) for number in result.result.track_ids]


@pytest.mark.usefixtures("detecting")
def test_every_frame_has_its_objects_none_too(client: Client) -> None:
    results = list(client.stream(source(packets(30)), pipeline="cats"))
    assert len(results) == 30
    for number, result in enumerate(results):
        found = result.result
        assert isinstance(found, Detections)
        np.testing.assert_array_equal(found.boxes, np.array(moving(number), np.float32).reshape(-1, 4))
        assert found.boxes.shape == (len(moving(number)), 4)
        assert (found.image_size, found.model, found.track_ids) == ((192, 256), "cats_video", None)
        assert found.labels == ("cat",) * len(found)
        fields = result.to_dict()
        assert fields["boxes"] == [list(box) for box in moving(number)]
        assert (fields["labels"], fields["image_size"]) == (["cat"] * len(found), [192, 256])
        assert not {"model", "tensors"} & fields.keys()


def test_every_frame_has_its_text_none_too(server: FakeServer, client: Client) -> None:
    """The last one is shown while the stream runs."""
    server.behaviour = Behaviour(sees=signs)
    results = list(client.stream(source(packets(9)), pipeline="read"))
    assert [result.frame_index for result in results] == list(range(9))
    for number, result in enumerate(results):
        found, fields = result.result, result.to_dict()
        assert isinstance(found, Reading)
        assert found.texts == tuple(texts(number))
        assert (found.image_size, found.model) == ((192, 256), "read_video")
        assert (fields["texts"], fields["left_out"], fields["image_size"]) == (texts(number), 0, [192, 256])
        assert not {"model", "tensors"} & fields.keys()
        assert caption(result, top=1) == (" / ".join(texts(number)).replace("\x1b", "?") or "no text")


def test_a_drawn_frame_says_its_picture_and_its_objects() -> None:
    result = a_result(0, [(1, 2, 3, 4)])
    picture = EncodedFrame(b"1234", True, 640, 480)
    fields = FrameResult(0, 0, 0.0, 1.0, 1.0, {}, video=picture, result=result.result).to_dict()
    assert fields["video"] == {"bytes": 4, "key": True, "width": 640, "height": 480}
    assert fields["boxes"] == [[1, 2, 3, 4]]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(
        tmp_path_factory.mktemp("clips") / "clip.mp4",
        "libx264",
        options={"g": "10", "bf": "0", "crf": "10"},
        count=30,
        size_hw=(192, 256),
    )


def test_the_command_prints_all_objects_and_their_tracks(detecting: FakeServer, clip: Path) -> None:
    *lines, _ = (json.loads(line) for line in run(detecting, clip, "--json").stdout.splitlines())
    assert [line["boxes"] for line in lines] == [[list(box) for box in moving(number)] for number in range(30)]
    assert all("track_ids" not in line for line in lines)
    *lines, _ = (json.loads(line) for line in run(detecting, clip, "--json", "--track").stdout.splitlines())
    moves = {line["track_ids"][0] for line in lines if line["boxes"]}
    assert len(moves) == 1
    assert {len(line["track_ids"]) - len(line["boxes"]) for line in lines} == {0}


@pytest.mark.parametrize("what", ["boxes", "text"])
def test_the_copy_has_what_was_found_in_each_frame(server: FakeServer, clip: Path, tmp_path: Path, what: str) -> None:
    server.behaviour = Behaviour(sees=cats) if what == "boxes" else Behaviour(sees=signs)
    assert run(server, clip, "-o", tmp_path / "out.mp4").exit_code == 0
    pairs = list(zip(every_frame(tmp_path / "out.mp4"), every_frame(clip), strict=True))
    assert len(pairs) == 30
    for number, (one, other) in enumerate(pairs):
        pixels, before = (frame.to_ndarray(format="rgb24").astype(int) for frame in (one, other))
        if what == "boxes":
            # The left line of the box that moves; its columns share their chroma with no others.
            left = 10 + 2 * number
            line, color = pixels[60:95, left : left + 2], color_of(17)
            # Below all captions, and outside of the boxes.
            untouched = np.s_[110:, :100]
        else:
            # Around the upper edge of the first line of text, which is three pixels thick.
            line, color = pixels[34:37, 106:114], color_of(0)
            # Outside of all quads and their texts.
            untouched = np.s_[140:, 215:]
        is_drawn = np.abs(np.median(line, axis=(0, 1)) - color).max() < 90
        assert is_drawn == (number % 3 != 2), number
        assert np.abs(pixels[untouched] - before[untouched]).mean() < 8


def test_tracks_need_a_detector_and_the_library(
    server: FakeServer, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(server, clip, "--track")
    assert result.exit_code == 2
    assert "frame 0 has no boxes; only the objects of a detector can be tracked" in result.stderr
    monkeypatch.setitem(sys.modules, "supervision", None)
    result = run(server, clip, "--track")
    assert result.exit_code == 2
    assert "tracks need the package supervision 0.30: pip install -e '.[detect]'" in result.stderr


def right(number: int) -> Box:
    return (10.0 + 6 * number, 100.0, 90.0 + 6 * number, 200.0)


def left(number: int) -> Box:
    return (500.0 - 6 * number, 130.0, 580.0 - 6 * number, 230.0)


def test_an_object_keeps_its_number_in_any_place_of_the_list() -> None:
    frames = [a_result(n, [right(n), left(n)] if n % 2 else [left(n), right(n)]) for n in range(30)]
    found = [ids(frame) for frame in tracked(frames)]
    assert len({numbers[n % 2 == 0] for n, numbers in enumerate(found)}) == 1
    assert {numbers[n % 2 == 1] for n, numbers in enumerate(found)} == {found[0][0]}
    assert found[0][0] != found[0][1]
    assert min(found[0]) >= 1


def test_two_that_cross_are_numbered_as_by_the_library() -> None:
    supervision = pytest.importorskip("supervision")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        library = supervision.ByteTrack()
    tracker = Tracker()
    for n in range(80):
        boxes = [right(n), left(n)]
        given = supervision.Detections(
            np.array(boxes, np.float32), confidence=np.full(2, 0.9), class_id=np.zeros(2, int)
        )
        given.data["place"] = np.arange(2)
        expected = library.update_with_detections(given)
        found = ids(tracker.update(a_result(n, boxes)))
        assert {place: found[place] for place in expected.data["place"]} == dict(
            zip(expected.data["place"], expected.tracker_id, strict=True)
        )


def test_a_new_object_has_a_number_from_its_second_frame_on_and_none_comes_twice() -> None:
    tracker = Tracker(lost_frames=5)
    assert ids(tracker.update(a_result(0, []))) == []
    assert ids(tracker.update(a_result(1, [right(0)]))) == [NO_TRACK]
    assert ids(tracker.update(a_result(2, [right(0)]))) == [1]
    empty = iter(range(3, 1000))
    for gone, after in ((5, [[1], [1]]), (8, [[NO_TRACK], [2]])):
        for _ in range(gone):
            assert ids(tracker.update(a_result(next(empty), []))) == []
        assert [ids(tracker.update(a_result(next(empty), [right(0)]))) for _ in range(2)] == after


def test_dropped_frames_count_as_frames_in_which_nothing_was_found() -> None:
    """An object is looked for where it must be by then, and where too many were dropped it is a new one."""
    for dropped, kept in ((12, True), (40, False)):
        tracker = Tracker(lost_frames=30)
        for n in range(10):
            last = ids(tracker.update(a_result(n, [right(n)])))
        back = 9 + dropped
        ids(tracker.update(a_result(back, [right(back)])))
        found = ids(tracker.update(a_result(back + 1, [right(back + 1)])))
        assert (found == last) is kept


def test_frames_that_are_not_sampled_do_not_count() -> None:
    """Of every tenth frame there is a result."""
    tracker = Tracker()
    found = [ids(tracker.update(a_result(10 * n, [right(n)]))) for n in range(20)]
    assert found == [[1]] * 20


def test_after_a_lost_connection_all_objects_are_new() -> None:
    tracker = Tracker()
    assert [ids(tracker.update(a_result(n, [right(0)]))) for n in range(3)] == [[1]] * 3
    assert ids(tracker.update(a_result(500, [right(0)], after_gap=True))) == [2]
    assert ids(tracker.update(a_result(501, [right(0)]))) == [2]


def test_tracks_reach_iteration_json_and_the_library_s_type() -> None:
    found = Tracker().update(a_result(0, [right(0)])).result
    (one,) = found
    assert (one.track_id, str(one)) == (1, "cat #1 0.90")
    assert found.to_dict()["track_ids"] == [1]
    assert found.to_supervision().tracker_id.tolist() == [1]
    with pytest.raises(ValueError, match="lost_frames must be 1 or more, got 0"):
        Tracker(lost_frames=0)
