"""A network in int8 behind a real server: rolled out in place of float32, and compared with it."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import onnx
import pytest
from int8_networks import color_network, pictures, pipeline_file
from typer.testing import CliRunner

from onestream.cli.demo_page.served import Served
from onestream.cli.main import app
from onestream.client import Client
from onestream.serving.building.build import build
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

FORMS = ("colors", "colors_fused")


def test_int8_takes_the_place_of_float32_and_answers_the_same(tmp_path: Path) -> None:
    file, own = pipeline_file(tmp_path, color_network(), cpu_instances=1)
    shown, repository = pictures(tmp_path / "pictures"), tmp_path / "repository"
    build(file, folder=repository, onnx_file=own)
    calibration = Calibration(pictures=shown)
    build(file, folder=repository, onnx_file=own, version=2, precision="int8", calibration=calibration)
    photos = [str(path) for path in shown[:3]]
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, device="cpu") as server:
        with contextlib.closing(Served(server.grpc_url)) as page:
            assert {page.offer().forms[form].precision for form in FORMS} == {"float32"}
        with Client(server.grpc_url) as client:
            before = [client.classify(photo, pipeline="colors").top for photo in photos]
        where = [f"--repository={repository}", f"--url={server.grpc_url}"]
        rollout = ["rollout", "colors", "--to=2", "--yes", "--watch-s=0.5", *where, *(f"--photos={p}" for p in photos)]
        ended = CliRunner().invoke(app, rollout)
        assert ended.exit_code == 0, ended.output
        assert "float32 → int8" in ended.output
        with contextlib.closing(Served(server.grpc_url)) as page:
            assert {page.offer().forms[form].precision for form in FORMS} == {"int8"}, "the demo page names it"
        with Client(server.grpc_url) as client:
            for form in FORMS:
                after = [client.classify(photo, pipeline=form).top for photo in photos]
                assert [one.label for one in after] == [one.label for one in before] == ["red", "green", "blue"]
                assert [one.score for one in after] != [one.score for one in before]
                assert [one.score for one in after] == pytest.approx([one.score for one in before], abs=0.05)
        parity = ["parity", str(file), *photos, *where, "--against=none", "--json=-"]
        ended = CliRunner().invoke(app, parity)
        report = json.loads(ended.stdout)
        (asked,) = [subject for subject in report["subjects"] if subject["name"] == "server (int8)"]
        # Both forms' answers beside those of the reference and float32.
        assert (asked["predictions"], asked["flips"]) == (6, [])
        assert ended.exit_code == 0


def test_a_load_that_cannot_time_int8_serves_it_and_says_so(tmp_path: Path) -> None:
    file, own = pipeline_file(tmp_path, color_network(), cpu_instances=1)
    shown, repository = pictures(tmp_path / "pictures"), tmp_path / "repository"
    build(file, folder=repository, onnx_file=own, precision="int8", calibration=Calibration(pictures=shown))
    version = repository / "colors_fused" / "1"
    network = onnx.load(str(version / "model.onnx"))
    for entry in network.metadata_props:
        # As if another machine had built it.
        entry.value = re.sub(r'("processor":{"name":")[^"]+', r"\1Another", entry.value)
    onnx.save(network, str(version / "model.onnx"))
    (version / "model.float32.onnx").write_bytes(b"cut off")
    with Server(repository, models=["colors_fused"], http_port=0, grpc_port=0, metrics_port=0, device="cpu") as server:
        with Client(server.grpc_url) as client:
            assert client.classify(str(shown[0]), pipeline="colors_fused").top.label == "red"
        assert (
            "model colors_fused: model.onnx and model.float32.onnx cannot be timed here" in server.log_path.read_text()
        )
