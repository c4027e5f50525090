"""A newcomer serves an exported detector: one file that ``onestream import`` prints, boxes in his picture's pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from image_files import encode
from PIL import Image, ImageDraw
from shared_server import Served
from typer.testing import CliRunner
from ultralytics_files import NAMES, SCORE, square_finder

from onestream.cli.main import app
from onestream.client import Client

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
    pytest.mark.serves(Served("mine", write_mine)),
]


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


def test_an_export_that_takes_one_picture_only_is_served_so_and_the_build_says_it(tmp_path: Path) -> None:
    onnx_file, pipeline_file = tmp_path / "net.onnx", tmp_path / "one.yaml"
    onnx_file.write_bytes(square_finder(batch="squeezed", size_hw=(64, 64)).SerializeToString())
    printed = CliRunner().invoke(app, ["import", str(onnx_file)]).stdout
    pipeline_file.write_text(printed)
    command = ["build", str(pipeline_file), "--onnx", str(onnx_file), "--repository", str(tmp_path / "repository")]
    built = CliRunner().invoke(app, command)
    assert built.exit_code == 0, built.output
    assert "one image at a time, on a GPU too: " in built.output
    pipeline_file.write_text(printed + "serving: {max_batch_size: 4}\n")
    refused = CliRunner().invoke(app, command, env={"COLUMNS": "1000"})
    assert refused.exit_code == 1
    assert "serving.max_batch_size is 4: write 1, or leave it out" in refused.output
