"""A report about a real server."""

from __future__ import annotations

import json
from pathlib import Path

import detectors
import pytest
import yaml
from builds import build
from own_pipeline import Own
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.measure.parity.explain import explain
from onestream.measure.parity.run import CannotCompare, Options, run
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
PIPELINE = ROOT / "pipelines" / "classify.yaml"

pytestmark = pytest.mark.needs_triton


def test_a_server_gives_what_the_loader_and_the_reference_give(server: Server, repository: Path) -> None:
    report = run(Options(pipeline_file=PIPELINE, repository=repository, url=server.grpc_address, against=["none"]))
    assert report.within
    dali, served = report.subjects
    assert (dali.name, served.name) == ("dali (cpu)", "server")
    assert served.forms == ["classify", "classify_fused"]
    assert (served.predictions, served.flips) == (12, [])
    # The server runs the same code on the same device: equal figures to the last digit.
    assert served.stages == {"crop": dali.stages["crop"]}
    assert served.logits == dali.logits


def test_a_server_of_another_definition_is_outside(server: Server, repository: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(PIPELINE.read_text())
    content["preprocess"]["operations"][1]["filter"] = "bicubic"
    skewed = tmp_path / "classify.yaml"
    skewed.write_text(yaml.safe_dump(content))
    report = run(Options(pipeline_file=skewed, repository=repository, url=server.grpc_address, against=["none"]))
    assert not report.within
    assert sum(problem.startswith("the served model") for problem in report.problems) == 4
    served = next(subject for subject in report.subjects if subject.name == "server")
    assert not served.within
    assert served.stages["crop"].max > 10
    assert "server departs by" in explain(report)
    content["preprocess"]["operations"][2]["size"] = [160, 160]
    skewed.write_text(yaml.safe_dump(content))
    report = run(Options(pipeline_file=skewed, repository=repository, url=server.grpc_address, against=["none"]))
    served = next(subject for subject in report.subjects if subject.name == "server")
    assert served.other_shape == {"crop": 6}
    assert "server gives another size at crop" in explain(report)


def test_a_server_without_the_pipeline_is_named(server: Server, own: Own) -> None:
    with pytest.raises(CannotCompare, match="none of the models mine_preprocess, mine_model, mine, mine_fused ready"):
        run(Options(pipeline_file=own.file, repository=own.repository, url=server.grpc_address, against=["none"]))


@pytest.mark.slow
def test_a_served_detector_finds_what_the_reference_finds(tmp_path: Path) -> None:
    detectors.level_detector(tmp_path / "cells.onnx")
    pipeline, repository = tmp_path / "cells.yaml", tmp_path / "repository"
    pipeline.write_text(yaml.safe_dump(detectors.pipeline("cells")))
    build(pipeline, folder=repository, onnx_file=tmp_path / "cells.onnx")
    photos = [str(ROOT / "examples" / "photos" / f"{name}.jpg") for name in ("cat", "rocket")]
    run_it = Options(pipeline_file=pipeline, images=photos, repository=repository, serve=True, against=["none"])
    report = run(run_it)
    assert report.within
    dali, served = (subject.boxes for subject in report.subjects)
    assert dali is not None
    assert served is not None
    assert report.subjects[1].forms == ["cells", "cells_fused"]
    # Bright photos: most of the 64 cells are objects, and the server is asked twice.
    assert served.expected == 2 * dali.expected > 60
    # Boxes are cells, which only come and go.
    assert (served.moved, served.farthest_px) == (0, 0)
    # One level of the pixels moves a score by a 255th: what comes and goes are the few cells that are so near 0.25.
    assert served.lost == 2 * dali.lost <= served.expected / 20
    assert served.added == 2 * dali.added <= served.expected / 20


@pytest.mark.slow
def test_a_server_of_its_own_is_started_and_stopped(own: Own) -> None:
    command = ["parity", str(own.file), "--serve", "--against", "none", "--json", "-", "--repository"]
    result = CliRunner().invoke(app, [*command, str(own.repository)])
    assert result.exit_code == 0, result.output
    served = json.loads(result.stdout)["subjects"][1]
    assert (served["name"], served["forms"], served["within"]) == ("server", ["mine", "mine_fused"], True)
    assert served["logits"]["max"] > 0
