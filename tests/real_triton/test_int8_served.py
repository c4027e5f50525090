"""A network in int8 that was built on another kind of machine, on a real Triton."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import onnx
import pytest
from int8_networks import in_int8, pictures
from shared_server import Served, SharedServer

from onestream.client import Client


def write_elsewhere(folder: Path) -> None:
    """A model that cannot be timed where it is loaded, since its network in float32 was cut off."""
    with tempfile.TemporaryDirectory() as there:
        built = in_int8(Path(there))
        shutil.copytree(built.folder / "colors_fused", folder / "colors_fused")
    version = folder / "colors_fused" / "1"
    network = onnx.load(str(version / "model.onnx"))
    for entry in network.metadata_props:
        entry.value = re.sub(r'("processor":{"name":")[^"]+', r"\1Another", entry.value)
    (version / "model.onnx").unlink()
    onnx.save(network, str(version / "model.onnx"))
    (version / "model.float32.onnx").unlink()
    (version / "model.float32.onnx").write_bytes(b"cut off")


pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(Served("colors_elsewhere", write_elsewhere)),
]


def test_a_load_that_cannot_time_int8_serves_it_and_says_so(server: SharedServer, tmp_path: Path) -> None:
    (shown,) = pictures(tmp_path, count=1)
    with Client(server.grpc_url, timeout_s=60) as client:
        assert client.classify(str(shown), pipeline="colors_fused").top.label == "red"
    said = server.log_path.read_text()
    assert "model colors_fused: model.onnx and model.float32.onnx cannot be timed here" in said
