"""Objects in video through a real Triton: boxes of every frame, drawn video, tracks, the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from clip_files import every_frame, turn, write_video
from pages import blocks, printed_by
from PIL import Image
from shared_server import DRAWN, SharedServer, built_in
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.client import Client, Detections
from onestream.client.video import FrameResult, VideoWriter
from onestream.preprocess.video.common.color import ColorRule, planes_of, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.wire.box_style import color_of

ROOT = Path(__file__).parents[2]
FRAMES, FPS, SIZE_HW = 18, 30, (360, 640)
EMPTY = range(9, 12)
TURNED = Orientation(True, False, True)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cat that moves to the right over a photo, and for some frames nothing at all. In BT.709, as tagged."""
    photos = ROOT / "examples" / "photos"
    behind = Image.open(photos / "flower.jpg").convert("RGB").resize(SIZE_HW[::-1])
    cat = Image.open(photos / "cat.jpg").convert("RGB").resize((330, 220))
    shown = []
    for number in range(FRAMES):
        picture = behind.copy() if number not in EMPTY else Image.new("RGB", behind.size, (90, 90, 90))
        if number not in EMPTY:
            picture.paste(cat, (20 + 7 * number, 80 + number))
        shown.append(np.asarray(picture))

    def tag(stream: Any) -> None:
        stream.codec_context.colorspace = stream.codec_context.color_range = 1

    return write_video(
        tmp_path_factory.mktemp("video") / "clip.mp4",
        "libx264",
        options={"bf": "2", "crf": "12"},
        time_base=Fraction(1, FPS),
        change=tag,
        pictures=shown,
    )


pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(built_in("detect"), DRAWN)]


@pytest.fixture
def client(server: SharedServer) -> Iterator[Client]:
    with Client(server.grpc_url, timeout_s=60) as connected:
        yield connected


def objects(frame: FrameResult) -> Detections:
    assert isinstance(frame.result, Detections)
    return frame.result


def watch(client: Client, clip: Path, pipeline: str = "detect") -> list[FrameResult]:
    with client.stream(clip, pipeline=pipeline) as frames:
        results = list(frames)
        assert frames.ended_reason == "done"
    return results


def pictures(clip: Path) -> list[npt.NDArray[np.uint8]]:
    """The frames as displayed, in RGB."""
    orientation = TURNED if clip.name == "turned.mp4" else Orientation()
    return [orientation.turn(to_rgb(planes_of(frame), ColorRule())) for frame in every_frame(clip)]


@pytest.mark.parametrize("turned", [False, True], ids=["upright", "turned"])
def test_boxes_of_a_frame_are_those_of_its_picture(client: Client, clip: Path, tmp_path: Path, turned: bool) -> None:
    source = turn(tmp_path / "turned.mp4", clip, (0, 1, -1, 0)) if turned else clip
    results = watch(client, source)
    assert [one.frame_index for one in results] == list(range(FRAMES))
    np.testing.assert_allclose([one.pts_seconds for one in results], np.arange(FRAMES) / FPS, atol=1e-4)
    for frame, pixels in list(zip(results, pictures(source), strict=True))[::3]:
        found = objects(frame)
        assert found.image_size == pixels.shape[:2] == (SIZE_HW[::-1] if turned else SIZE_HW)
        expected = client.detect(pixels, pipeline="detect_fused")
        # The network's sums depend on the size of a batch; what is near the threshold may come or go.
        clear = [at for at, score in enumerate(expected.scores) if score > 0.35]
        assert [found.labels[at] for at in clear] == [expected.labels[at] for at in clear]
        np.testing.assert_allclose(found.scores[clear], expected.scores[clear], atol=0.02)
        np.testing.assert_allclose(found.boxes[clear], expected.boxes[clear], atol=2)
    if not turned:
        assert all("cat" in objects(one).labels for one in results if one.frame_index not in EMPTY)
        assert all(len(objects(results[number])) == 0 for number in EMPTY)


def test_boxes_are_drawn_where_they_are_said(client: Client, clip: Path, tmp_path: Path) -> None:
    undrawn, results = watch(client, clip), watch(client, clip, "drawn")
    with VideoWriter(tmp_path / "out.mp4") as video:
        for one in results:
            video.write(one)
    drawn = every_frame(tmp_path / "out.mp4")
    assert [frame.time for frame in drawn] == pytest.approx(np.arange(FRAMES) / FPS, abs=1e-4)
    for frame, before, picture, source in zip(results, undrawn, drawn, pictures(clip), strict=True):
        np.testing.assert_array_equal(objects(frame).boxes, objects(before).boxes)
        assert objects(frame).labels == objects(before).labels
        pixels = to_rgb(planes_of(picture), ColorRule())
        assert pixels.shape[:2] == objects(frame).image_size
        # Encoded twice: the source is as it was wherever nothing is drawn.
        if len(objects(frame)) == 0:
            assert abs(pixels.astype(int) - source).mean() < 1
            continue
        best = next(iter(objects(frame)))
        x0, y0, x1, y1 = (round(side) for side in best.box)
        middle = (y0 + y1) // 2
        # Lines are two pixels wide, in this size, and begin at even columns.
        left = int(best.box[0]) // 2 * 2
        line = pixels[middle : y1 - 4, left : left + 2].astype(int)
        assert abs(np.median(line, axis=(0, 1)) - color_of(best.class_id)).max() < 30
        inside = np.s_[middle : middle + 20, (x0 + x1) // 2 : (x0 + x1) // 2 + 20]
        assert abs(pixels[inside].astype(int) - source[inside]).mean() < 4


def stream(server: SharedServer, *arguments: object) -> str:
    """What the command prints."""
    ended = CliRunner().invoke(app, ["stream", "--url", server.grpc_address, *map(str, arguments)])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_the_command_prints_objects_and_tracks_and_draws_them_where_the_server_does_not(
    server: SharedServer, clip: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.mp4"
    printed = stream(server, clip, "--pipeline", "detect", "--json", "--track", "-o", out)
    *lines, last = (json.loads(line) for line in printed.splitlines())
    assert (last["ended"], last["results"]) == ("done", FRAMES)
    for line in lines:
        names = ("boxes", "scores", "class_ids", "labels", "track_ids")
        assert {len(line[name]) for name in names} == {len(line["boxes"])}
        assert line["image_size"] == list(SIZE_HW)
    numbers = {
        track_id
        for line in lines
        for label, score, track_id in zip(line["labels"], line["scores"], line["track_ids"], strict=True)
        if label == "cat" and score > 0.5
    }
    assert len(numbers) == 1, "also over the frames in which nothing is found"
    assert numbers != {-1}
    line, frame = lines[-1], every_frame(out)[-1]
    left, top, _, bottom = line["boxes"][0]
    pixels = frame.to_ndarray(format="rgb24")
    edge = pixels[round((top + bottom) / 2) : round(bottom) - 4, int(left) : int(left) + 3].astype(int)
    # Fewer bits than the server's, so that half of a line's colour may be that of what is beside it.
    assert abs(np.median(edge, axis=0) - color_of(line["class_ids"][0])).max(axis=1).min() < 60


def test_the_page_s_python_tracks_objects(server: SharedServer, clip: Path) -> None:
    *_, code = blocks("video.md", "python")
    printed = printed_by(code.replace("127.0.0.1:8001", server.grpc_address).replace("clip.mp4", str(clip)))
    assert re.match(r"0 0\.0 cat #1 0\.\d\d \(", printed[0])
