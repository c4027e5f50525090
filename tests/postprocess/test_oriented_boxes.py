"""Boxes that are turned: where their corners lie in a picture, and which of them suppress others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from detectors import ANGLE, CELL, TURNED_CELLS
from kind_networks import answer_in_process, built_of
from PIL import Image

from onestream.client import kinds
from onestream.postprocess.detection.detect import detect
from onestream.preprocess.geometry import Mapping
from onestream.serving.models.in_process import InProcess

PLAIN = Mapping((100, 100), (100, 100), (1.0, 1.0), (0.0, 0.0))


def test_corners_are_in_pixels_of_the_picture_and_boxes_around_them(tmp_path: Path) -> None:
    model = InProcess(built_of("oriented_boxes", tmp_path).folder / f"{TURNED_CELLS.name}_fused")
    picture = np.zeros((32, 64, 3), np.uint8)  # twice as wide as high: 16 rows of the letterbox are above it
    picture[8:16, 16:24] = (255, 0, 0)
    answer = answer_in_process(model, picture)
    result = kinds.read("oriented_boxes", "m", answer, "", 0)
    half = CELL / 2
    upright = np.array([[-half, -half], [half, -half], [half, half], [-half, half]])
    turn = np.array([[np.cos(ANGLE), np.sin(ANGLE)], [-np.sin(ANGLE), np.cos(ANGLE)]])
    expected = upright @ turn + (20, 12)
    np.testing.assert_allclose(result.quads[0], expected, atol=1e-4)  # rounding of float32
    np.testing.assert_allclose(result.boxes[0], [*expected.min(0), *expected.max(0)], atol=1e-4)
    ((name, (line,)),) = result.to_dota("P0001").items()
    assert (name, *line.split()[:2]) == ("0", "P0001", "1.0000")
    assert result.records(is_flat=True)[0]["corner1_x"] == result.quads[0, 0, 0]
    assert np.asarray(result.draw(Image.fromarray(picture)))[12, 25].any(), "the right side, which is no longer upright"


def test_turned_boxes_suppress_by_the_overlap_of_what_they_cover() -> None:
    """Two long boxes that cross cover little of each other, though the boxes around them are the same."""
    boxes = np.array([[10, 45, 90, 55]] * 4, np.float32)
    found = detect(
        boxes,
        np.array([0.9, 0.8, 0.7, 0.6], np.float32),
        np.array([0, 0, 0, 1], np.int32),
        PLAIN,
        angles=np.array([np.pi / 4, -np.pi / 4, np.pi / 4 + 0.02, np.pi / 4], np.float32),
        score_threshold=0.5,
        iou_threshold=0.5,
        max_detections=10,
    )
    assert found.places.tolist() == [0, 1, 3], "the last is of another class"
    np.testing.assert_allclose(found.boxes[0], found.boxes[1], atol=1e-3)
