"""Objects through a real Triton: those of an exported detector; points, turned boxes and masks; in video, drawn."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from clip_files import every_frame, turn, write_video
from detectors import CELL, MASKED_CELLS, POSES, TURNED_CELLS
from image_files import encode
from pages import blocks, printed_by
from PIL import Image, ImageDraw
from shared_server import DRAWN, Served, SharedServer, built_in
from typer.testing import CliRunner
from ultralytics_files import NAMES, SCORE, square_finder

from onestream.cli.main import app
from onestream.client import Client, Detections, InstanceMasks, Keypoints, OrientedBoxes
from onestream.client.video import FrameResult, VideoWriter, tracked
from onestream.preprocess.video.common.color import ColorRule, planes_of, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.wire.box_style import color_of

ROOT = Path(__file__).parents[2]
FRAMES, FPS, SIZE_HW = 18, 30, (360, 640)
EMPTY = range(9, 12)
TURNED = Orientation(True, False, True)
ALL = (POSES, TURNED_CELLS, MASKED_CELLS)
NETWORK_HW = (320, 320)
SQUARES = {0: (0.05, 0.1, 0.3, 0.35), 1: (0.5, 0.2, 0.95, 0.6), 2: (0.25, 0.7, 0.55, 0.95)}
"""Red, green and blue: x0, y0, x1, y1 in parts of the picture's sides."""
COLORS = {0: (255, 0, 0), 1: (0, 255, 0), 2: (0, 0, 255)}


def write_mine(folder: Path) -> Path:
    """What ``onestream import`` prints of an export in float16."""
    onnx_file = folder / "mine.onnx"
    onnx_file.write_bytes(square_finder(size_hw=NETWORK_HW, half=True).SerializeToString())
    printed = CliRunner().invoke(app, ["import", str(onnx_file)])
    assert printed.exit_code == 0, printed.output
    (folder / "mine.yaml").write_text(printed.stdout + "serving: {cpu_instances: 1}\n")
    return onnx_file


pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(*ALL, Served("mine", write_mine), built_in("detect"), DRAWN),
]


def pixels(number: int) -> np.ndarray:
    """Red in one cell of the network's input, which moves."""
    picture = np.zeros((128, 128, 3), np.uint8)
    picture[64 : 64 + 2 * CELL, 16 * number : 16 * number + 2 * CELL, 0] = 255
    return picture


def test_points_of_pictures_in_both_forms_and_in_bulk(
    server: SharedServer, grpc_client: Client, tmp_path: Path
) -> None:
    Image.fromarray(pixels(2)).save(tmp_path / "a.png")
    results = [grpc_client.predict(pixels(2), pipeline=name) for name in ("poses", "poses_fused")]
    for result in results:
        assert isinstance(result, Keypoints)
        (pose,) = result
        assert pose.points["left"] == pytest.approx((36, 68, 1))
        assert pose.points["below"] == pytest.approx((40, 128, 0.125))
    command = ["bulk", str(tmp_path / "a.png"), "--pipeline=poses", f"--to={tmp_path / 'rows.jsonl'}"]
    done = CliRunner().invoke(app, [*command, f"--url={server.grpc_url}"])
    assert done.exit_code == 0, done.output
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert row["keypoints"] == results[0].values()["keypoints"]


@pytest.mark.parametrize("served", ALL, ids=lambda served: str(served.name))
def test_a_stream_is_drawn_into_and_tracked(grpc_client: Client, served: Served, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", pictures=[pixels(number) for number in range(6)])
    with grpc_client.stream(clip, pipeline=served.name) as frames:
        results = list(tracked(frames))
    assert len(results) == 6
    for number, frame in enumerate(results):
        assert frame.video is not None
        assert isinstance(frame.result, Detections)
        (box,) = frame.result.boxes
        # Frames are resized as YUV, and compressed.
        assert (box[:2] + box[2:]) / 2 == pytest.approx((16 * number + CELL, 64 + CELL), abs=2)
        assert frame.result.tracker_id is not None
        if isinstance(frame.result, Keypoints):
            assert frame.result[0].points["right"][:2] == pytest.approx((16 * number + 14, 70), abs=2)
        elif isinstance(frame.result, InstanceMasks):
            assert frame.result.areas == pytest.approx([4 * CELL * CELL], rel=0.25)
        else:
            assert isinstance(frame.result, OrientedBoxes)
            assert frame.result.quads[0].mean(axis=0) == pytest.approx((16 * number + CELL, 64 + CELL), abs=2)


def drawn(width: int, height: int) -> tuple[Image.Image, dict[int, np.ndarray]]:
    """A picture of squares on gray, and where they are in its pixels."""
    image, places = Image.new("RGB", (width, height), (60, 60, 60)), {}
    for class_id, square in SQUARES.items():
        x0, y0, x1, y1 = (round(p * side) for p, side in zip(square, (width, height) * 2, strict=True))
        ImageDraw.Draw(image).rectangle((x0, y0, x1 - 1, y1 - 1), fill=COLORS[class_id])
        places[class_id] = np.array([x0, y0, x1, y1])
    return image, places


@pytest.mark.parametrize("form", ["mine", "mine_fused"])
@pytest.mark.parametrize(("width", "height"), [(427, 640), (960, 540), (333, 1001), (320, 320), (100, 70)], ids=str)
def test_boxes_are_where_the_squares_were_drawn(client: Client, form: str, width: int, height: int) -> None:
    image, places = drawn(width, height)
    found = client.detect(encode(image, "PNG"), pipeline=form)
    assert found.image_size == (height, width)
    assert sorted(found.class_ids) == sorted(places)
    for one in found:
        assert one.label == NAMES[one.class_id]
        # float16 has 11 binary digits.
        assert one.score == pytest.approx(SCORE, abs=1e-3)
        # The network sees whole pixels of its own: one of them, in pixels of the picture.
        pixel = max(1.0, *(side / own for side, own in zip((height, width), NETWORK_HW, strict=True)))
        np.testing.assert_allclose(one.box, places[one.class_id], atol=pixel)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cat that moves to the right over a photo, and for some frames nothing at all. In BT.709, as tagged."""
    photos = ROOT / "examples" / "photos"
    behind = Image.open(photos / "flower.jpg").convert("RGB").resize(SIZE_HW[::-1])
    cat = Image.open(photos / "cat.jpg").convert("RGB").resize((330, 220))
    shown = []
    for number in range(FRAMES):
        picture = behind.copy()
        picture.paste(cat, (20 + 7 * number, 80 + number))
        shown.append(np.full((*SIZE_HW, 3), 90, np.uint8) if number in EMPTY else np.asarray(picture))

    def tag(stream: Any) -> None:
        stream.codec_context.colorspace = stream.codec_context.color_range = 1

    path, options = tmp_path_factory.mktemp("video") / "clip.mp4", {"bf": "2", "crf": "12"}
    return write_video(path, "libx264", options=options, time_base=Fraction(1, FPS), change=tag, pictures=shown)


def objects(frame: FrameResult) -> Detections:
    assert isinstance(frame.result, Detections)
    return frame.result


def watch(grpc_client: Client, clip: Path, pipeline: str = "detect") -> list[FrameResult]:
    with grpc_client.stream(clip, pipeline=pipeline) as frames:
        results = list(frames)
        assert frames.ended_reason == "done"
    return results


def pictures(clip: Path) -> list[npt.NDArray[np.uint8]]:
    """The frames as displayed, in RGB."""
    orientation = TURNED if clip.name == "turned.mp4" else Orientation()
    return [orientation.turn(to_rgb(planes_of(frame), ColorRule())) for frame in every_frame(clip)]


@pytest.mark.parametrize("turned", [False, True], ids=["upright", "turned"])
def test_boxes_of_a_frame_are_those_of_its_picture(
    grpc_client: Client, clip: Path, tmp_path: Path, turned: bool
) -> None:
    source = turn(tmp_path / "turned.mp4", clip, (0, 1, -1, 0)) if turned else clip
    results = watch(grpc_client, source)
    assert [one.frame_index for one in results] == list(range(FRAMES))
    np.testing.assert_allclose([one.pts_seconds for one in results], np.arange(FRAMES) / FPS, atol=1e-4)
    for frame, pixels in list(zip(results, pictures(source), strict=True))[::3]:
        found = objects(frame)
        assert found.image_size == pixels.shape[:2] == (SIZE_HW[::-1] if turned else SIZE_HW)
        expected = grpc_client.detect(pixels, pipeline="detect_fused")
        # The network's sums depend on the size of a batch; what is near the threshold may come or go.
        clear = [at for at, score in enumerate(expected.scores) if score > 0.35]
        assert [found.labels[at] for at in clear] == [expected.labels[at] for at in clear]
        np.testing.assert_allclose(found.scores[clear], expected.scores[clear], atol=0.02)
        np.testing.assert_allclose(found.boxes[clear], expected.boxes[clear], atol=2)
    if not turned:
        assert all("cat" in objects(one).labels for one in results if one.frame_index not in EMPTY)
        assert all(len(objects(results[number])) == 0 for number in EMPTY)


def test_boxes_are_drawn_where_they_are_said(grpc_client: Client, clip: Path, tmp_path: Path) -> None:
    undrawn, results = watch(grpc_client, clip), watch(grpc_client, clip, "drawn")
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
