"""A report about a real server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import detectors
import pytest
from builds import build
from own_pipeline import Own

from onestream.measure.parity.explain import explain
from onestream.measure.parity.report import Report
from onestream.measure.parity.run import CannotCompare
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
PIPELINE = ROOT / "pipelines" / "classify.yaml"

pytestmark = pytest.mark.needs_triton


def compared(server: Server, own: Own) -> Report:
    return own.compare(url=server.grpc_address, against=["none"])


def test_a_server_gives_what_the_loader_and_the_reference_give(server: Server, repository: Path) -> None:
    report = compared(server, Own(PIPELINE, repository))
    assert report.within
    dali, served = report.subjects
    assert (dali.name, served.name) == ("dali (cpu)", "server")
    assert served.forms == ["classify", "classify_fused"]
    assert (served.predictions, served.flips) == (12, [])
    # The server runs the same code on the same device: equal figures to the last digit.
    assert served.stages == {"crop": dali.stages["crop"]}
    assert served.logits == dali.logits


def test_a_server_of_another_definition_is_outside(server: Server, repository: Path, tmp_path: Path) -> None:
    skewed = Own(tmp_path / "classify.yaml", repository)
    shutil.copyfile(PIPELINE, skewed.file)
    skewed.change(1, filter="bicubic")
    report = compared(server, skewed)
    assert not report.within
    assert sum(problem.startswith("the served model") for problem in report.problems) == 4
    served = next(subject for subject in report.subjects if subject.name == "server")
    assert not served.within
    assert served.stages["crop"].max > 10
    assert "server departs by" in explain(report)
    skewed.change(2, size=[160, 160])
    report = compared(server, skewed)
    served = next(subject for subject in report.subjects if subject.name == "server")
    assert served.other_shape == {"crop": 6}
    assert "server gives another size at crop" in explain(report)


def test_a_server_without_the_pipeline_is_named(server: Server, own: Own) -> None:
    with pytest.raises(CannotCompare, match="none of the models mine_preprocess, mine_model, mine, mine_fused ready"):
        compared(server, own)


@pytest.mark.slow
def test_a_served_detector_finds_what_the_reference_finds(tmp_path: Path) -> None:
    """By a server that the command starts and stops."""
    cells = Own(tmp_path / "cells.yaml", tmp_path / "repository")
    network = detectors.RED_CELLS.write(tmp_path)
    assert isinstance(network, Path)
    build(cells.file, folder=cells.repository, onnx_file=network)
    photos = [str(ROOT / "examples" / "photos" / f"{name}.jpg") for name in ("cat", "rocket")]
    result = cells.parity(*photos, "--serve", "--against", "none", "--json", "-")
    report = json.loads(result.stdout)
    assert report["within"]
    dali, served = (subject["boxes"] for subject in report["subjects"])
    assert report["subjects"][1]["forms"] == ["cells", "cells_fused"]
    # Bright photos: many of the 64 cells are objects, and the server is asked twice.
    assert served["expected"] == 2 * dali["expected"] > 50
    # Boxes are cells, which only come and go.
    assert (served["moved"], served["farthest_px"]) == (0, 0)
    # One level of the pixels moves a score by a 255th: what comes and goes are the few cells that are so near 0.5.
    assert served["lost"] == 2 * dali["lost"] <= served["expected"] / 20
    assert served["added"] == 2 * dali["added"] <= served["expected"] / 20
