"""What the fused model runs, without a server: the same answers, and the CPU time of its networks beside the rest."""

from __future__ import annotations

import io
from pathlib import Path

import detectors
import networks
import numpy as np
import onnx
import pytest
import yaml
from PIL import Image

from benchmarks import network_time
from benchmarks.in_process import open_fused
from onestream.preprocess import BadImage
from onestream.serving.building.build import build

SIDE = 4 * detectors.CELL


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fused model of a cascade: bright cells are found, and each is classified by its mean colour."""
    folder = tmp_path_factory.mktemp("cascade")
    scaled = {"op": "normalize", "scale": 255, "mean": [0, 0, 0], "std": [1, 1, 1]}
    resize = {"op": "resize", "mode": "exact", "size": [32, 32]}
    find = {
        "preprocess": {"operations": [{"op": "decode"}, {"op": "letterbox", "size": [SIDE, SIDE], "value": 0}, scaled]},
        "postprocess": {"kind": "detection", "family": "yolo", "score_threshold": 0.5},
    }
    name = {
        "preprocess": {"operations": [{"op": "region", "of": "find"}, resize, scaled]},
        "postprocess": {"kind": "classification", "top_k": 1, "labels": list("abcdefg")},
    }
    (folder / "things.yaml").write_text(yaml.safe_dump({"stages": {"find": find, "name": name}}, sort_keys=False))
    detectors.level_detector(folder / "find.onnx", cells=4)
    onnx.save(networks.mean_color(), folder / "name.onnx")
    files = {stage: folder / f"{stage}.onnx" for stage in ("find", "name")}
    build(folder / "things.yaml", folder=folder / "repository", onnx_files=files)
    return folder / "repository" / "things_fused"


def picture(*bright: tuple[int, int]) -> bytes:
    """A black PNG whose cells at these rows and columns are bright."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    for row, column in bright:
        pixels[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] = (230, 255, 40)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_a_cascade_runs_without_a_server(cascade: Path) -> None:
    one, nothing = open_fused(cascade)([picture((0, 1), (2, 3)), picture()])
    assert one["boxes"].shape[:2] == one["labels"].shape[:2] == (1, 2)
    assert nothing["boxes"].shape == (1, 0, 4)
    with pytest.raises(BadImage):
        open_fused(cascade)([b"no picture"])


def test_networks_and_the_rest_are_told_apart(cascade: Path) -> None:
    passes = network_time.measure(cascade, [picture((0, 1)), picture()], passes=3)
    assert len(passes) == 3
    for one in passes:
        assert tuple(one) == network_time.TIMED
        assert all(milliseconds > 0 for milliseconds in one.values())


def test_only_runs_of_networks_count_as_theirs(cascade: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by one at each look: so many runs, so many seconds."""
    ticks = iter(range(1000))
    monkeypatch.setattr(network_time.time, "thread_time", lambda: float(next(ticks)))
    monkeypatch.setattr(network_time.TimedEngine, "used_s", 0.0)
    run = open_fused(cascade, engine=network_time.TimedEngine)
    run([picture((0, 1), (2, 3))])
    # One of the detector and two of the classifier.
    assert network_time.TimedEngine.used_s == 3
    run([picture()])
    assert network_time.TimedEngine.used_s == 4
