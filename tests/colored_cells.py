"""A cascade whose pictures are grids of coloured cells: bright ones are found, and named by their strongest channel."""

from __future__ import annotations

import functools
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import detectors
import numpy as np
import pytest
import yaml
from networks import strongest_channel
from PIL import Image
from shared_server import Served

from onestream.client import BadImage, Client

CELLS, SCALE, MOST = 32, 2, 600
SIDE = CELLS * detectors.CELL
FORMS = ("grid", "grid_fused")
COLORS = {"red": (200, 0, 0), "green": (200, 255, 0), "blue": (200, 0, 255)}


def fields() -> dict[str, Any]:
    scaled = {"op": "normalize", "scale": 255, "mean": [0, 0, 0], "std": [1, 1, 1]}
    find = {
        "preprocess": {"operations": [{"op": "decode"}, {"op": "letterbox", "size": [SIDE, SIDE], "value": 0}, scaled]},
        "postprocess": {
            "kind": "detection",
            "family": "yolo",
            "score_threshold": 0.5,
            "max_detections": 1000,
            "max_candidates": 1000,
        },
    }
    name = {
        "preprocess": {
            "operations": [{"op": "region", "of": "find"}, {"op": "resize", "mode": "exact", "size": [16, 16]}, scaled]
        },
        "postprocess": {"kind": "classification", "top_k": 1, "activation": "none", "labels": list(COLORS)},
    }
    return {
        "stages": {"find": find, "name": name},
        "limits": {"max_regions": MOST},
        "video": {},
        "serving": {"max_batch_size": 4, "cpu_instances": 1},
    }


def write(folder: Path, *, name: str = "grid", **more: Any) -> dict[str, Path]:
    """Write NAME.yaml and the networks of its stages, which are returned; ``more`` are other fields of the file."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields() | more, sort_keys=False))
    networks = {name: folder / f"{name}.onnx" for name in ("find", "name")}
    detectors.level_detector(networks["find"], cells=CELLS)
    strongest_channel(networks["name"])
    return networks


GRID = Served("grid", write)


def picture(colors: list[str]) -> bytes:
    """A PNG whose first cells, row by row, have these colours."""
    return _picture(tuple(colors))


@functools.cache
def _picture(colors: tuple[str, ...]) -> bytes:
    cells = np.zeros((CELLS * CELLS, 3), np.uint8)
    cells[: len(colors)] = [COLORS[color] for color in colors] or np.empty((0, 3))
    pixels = cells.reshape(CELLS, CELLS, 3).repeat(detectors.CELL * SCALE, 0).repeat(detectors.CELL * SCALE, 1)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_clip(path: Path, shown: list[list[str]]) -> Path:
    """A lossless video with a frame for each picture of cells."""
    from clip_files import write_video

    pictures = [np.asarray(Image.open(io.BytesIO(picture(colors)))) for colors in shown]
    return write_video(path, "libx264", options={"qp": "0"}, pixel_format="yuv444p", pictures=pictures)


def drawn(count: int, seed: int) -> list[str]:
    return np.random.default_rng(seed).choice(list(COLORS), count).tolist()


def places(boxes: Any) -> list[int]:
    """Which cells the boxes are."""
    cell = detectors.CELL * SCALE
    assert np.allclose(boxes[:, 2:] - boxes[:, :2], cell)
    return [round(float(y) / cell) * CELLS + round(float(x) / cell) for x, y in boxes[:, :2]]


def ask_in_a_crowd(grpc_url: str, forms: tuple[str, ...]) -> None:
    """12 callers of the forms by turns: each gets its own rows, and every fifth picture, which was cut, is refused."""

    def ask(number: int) -> str:
        colors, form = drawn(number % 7, number), forms[number % len(forms)]
        with Client(grpc_url, timeout_s=60) as client:
            if number % 5 == 0:
                with pytest.raises(BadImage):
                    client.infer(form, picture(colors)[: 80 + number])
                return "refused"
            found = client.infer(form, picture(colors))
        order = np.argsort(places(found["boxes"][0]))
        assert [found["labels"][0][place].decode() for place in order] == colors
        return "answered"

    with ThreadPoolExecutor(12) as pool:
        outcomes = list(pool.map(ask, range(40)))
    assert outcomes.count("refused") == 8
