"""A detector behind a real nginx: no object and many come through it, by both protocols."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import detectors
import pytest
import yaml
from gate import ROOT, Gate, gate_before

from onestream.serving.building.build import build
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.needs_nginx, pytest.mark.slow]

FORMS = ("cells", "cells_fused")


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("detector_gate")
    detectors.level_detector(folder / "cells.onnx")
    (folder / "cells.yaml").write_text(yaml.safe_dump(detectors.pipeline("cells", score_threshold=0.5)))
    repository = folder / "repository"
    build(folder / "cells.yaml", folder=repository, onnx_file=folder / "cells.onnx")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with (
        Server(repository, **ports, models=list(FORMS)) as server,
        gate_before(server, folder, "--repository", str(repository)) as opened,
    ):
        yield opened


CALLS = """
import json, os, sys
import numpy as np
from onestream.client import Client

url, form, side = sys.argv[1], sys.argv[2], int(sys.argv[3])
black = np.zeros((side, side, 3), np.uint8)
one, everywhere = black.copy(), black.copy()
one[:8, 8:16, 0], everywhere[..., 0] = 255, 255
with Client(url, token=os.environ["ONESTREAM_TOKEN"], timeout_s=60) as client:
    print(json.dumps([client.detect(picture, pipeline=form).to_dict() for picture in (black, one, everywhere)]))
"""


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
@pytest.mark.parametrize("form", FORMS)
def test_objects_come_through(gate: Gate, scheme: str, form: str) -> None:
    """In a process of its own, since gRPC reads whom it trusts once."""
    command = [sys.executable, "-c", CALLS, gate.url(scheme), form, str(detectors.SIDE)]
    environment = gate.environment(gate.token)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    nothing, one, everywhere = json.loads(done.stdout)
    assert nothing["boxes"] == []
    assert one["boxes"] == [[8, 0, 16, 8]]
    assert len(everywhere["boxes"]) == detectors.CELLS**2
    assert everywhere["image_size"] == [detectors.SIDE, detectors.SIDE]
