"""Points, turned boxes and masks of objects through a real Triton: both forms, bulk, and streams that are drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from clip_files import write_video
from detectors import CELL, MASKED_CELLS, POSES, TURNED_CELLS
from kind_networks import write_of
from PIL import Image
from shared_server import Served, SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.client import Client, DenseMap, Detections, InstanceMasks, Keypoints, OrientedBoxes
from onestream.client.video import tracked

ALL = (POSES, TURNED_CELLS, MASKED_CELLS)
DENSE = Served("dense", lambda folder: write_of("dense_map", folder, "dense"))
pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(*ALL, DENSE)]
SIZE_HW = (128, 128)
FRAMES = 6


def pixels(number: int) -> np.ndarray:
    """Red in one cell of the network's input, which moves."""
    picture = np.zeros((*SIZE_HW, 3), np.uint8)
    picture[64 : 64 + 2 * CELL, 16 * number : 16 * number + 2 * CELL, 0] = 255
    return picture


def test_points_of_pictures_in_both_forms_and_in_bulk(server: SharedServer, tmp_path: Path) -> None:
    Image.fromarray(pixels(2)).save(tmp_path / "a.png")
    with Client(server.grpc_url, timeout_s=60) as client:
        results = [client.predict(pixels(2), pipeline=name) for name in ("poses", "poses_fused")]
    for result in results:
        assert isinstance(result, Keypoints)
        (pose,) = result
        assert pose.points["left"] == pytest.approx((36, 68, 1))
        assert pose.points["below"] == pytest.approx((40, 128, 0.125))
    done = CliRunner().invoke(
        app,
        [
            "bulk",
            str(tmp_path / "a.png"),
            "--pipeline=poses",
            f"--to={tmp_path / 'rows.jsonl'}",
            "--url",
            server.grpc_url,
        ],
    )
    assert done.exit_code == 0, done.output
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert row["keypoints"] == results[0].values()["keypoints"]


def test_a_dense_map_is_of_the_pictures_size_in_both_forms(server: SharedServer) -> None:
    with Client(server.grpc_url, timeout_s=60) as client:
        maps = [client.predict(pixels(2)[:, :100], pipeline=name) for name in ("dense", "dense_fused")]
    assert all(isinstance(one, DenseMap) and one.map.shape == (128, 100) for one in maps)
    assert maps[0].compare(maps[1]).difference < 1e-5, "sums are in another order"


@pytest.mark.parametrize("served", ALL, ids=lambda served: str(served.name))
def test_a_stream_is_drawn_into_and_tracked(server: SharedServer, served: Served, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", pictures=[pixels(number) for number in range(FRAMES)])
    with Client(server.grpc_url, timeout_s=60) as client, client.stream(clip, pipeline=served.name) as frames:
        results = list(tracked(frames))
    assert len(results) == FRAMES
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
