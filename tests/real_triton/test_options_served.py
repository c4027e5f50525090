"""Options and flags of Triton's own, and one form alone, from the pipeline file to a real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from networks import mean_color

from onestream.client import Client
from onestream.serving.building.build import build
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

STEPS = ("preprocess", "model", "postprocess")
pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


def write(folder: Path, **serving: Any) -> tuple[Path, Path]:
    """A pipeline file with these options, and its network."""
    operations = [
        {"op": "decode"},
        {"op": "letterbox", "size": [48, 64], "value": 114},
        {"op": "normalize", "mean": [0, 0, 0], "std": [1, 1, 1]},
    ]
    described = {"preprocess": {"operations": operations}, "postprocess": {"kind": "raw"}, "serving": serving}
    file, network = folder / "mine.yaml", folder / "mine.onnx"
    file.write_text(yaml.safe_dump(described))
    network.write_bytes(mean_color(("n", 3, 48, 64)).SerializeToString())
    return file, network


def test_options_and_flags_have_effect(tmp_path: Path, photos: dict[str, bytes]) -> None:
    """A server of its own, for its flags: a cache of decoded pixels."""
    largest = {"model_warmup": [{"name": "largest", "batch_size": 8}]}
    file, network = write(
        tmp_path,
        cpu_instances=1,
        triton={
            "preprocess": {"response_cache": {"enable": True}},
            "fused": {**largest, "instance_group": [{"count": 2}]},
            "model": largest,
        },
    )
    built = build(file, folder=tmp_path / "repository", onnx_file=network)
    with (
        Server(
            built.folder, http_port=0, grpc_port=0, metrics_port=0, flags=["--cache-config=local,size=4194304"]
        ) as server,
        Client(server.grpc_url, timeout_s=60) as client,
    ):
        first, second, fused = (client.infer(name, photos["cat"]) for name in ("mine", "mine", "mine_fused"))
        counts = {
            role: (statistics.inference_count, statistics.execution_count)
            for role in ("preprocess", "model", "fused")
            if (statistics := client.statistics(f"mine_{role}"))
        }
    for answer in (second, fused):
        np.testing.assert_array_equal(first["scores_out"], answer["scores_out"])
    # Warm-ups count: of one image; of the largest batch, in each of two instances where the options say so.
    assert counts == {"preprocess": (1 + 1, 2), "model": (8 + 2, 3), "fused": (2 * 8 + 1, 3)}


@pytest.mark.parametrize("form", ["ensemble", "fused"])
def test_one_form_answers_to_both_names(form: str, tmp_path: Path, photos: dict[str, bytes]) -> None:
    """A server of its own, for its processes."""
    file, network = write(tmp_path, cpu_instances=1, forms=[form])
    built = build(file, folder=tmp_path / "repository", onnx_file=network)
    with (
        Server(built.folder, http_port=0, grpc_port=0, metrics_port=0) as server,
        Client(server.grpc_url, timeout_s=60) as client,
    ):
        one, other = (client.predict(photos["cat"], pipeline=name) for name in ("mine", "mine_fused"))
        processes = {process.model for process in find_model_processes(server.pid).running}
    np.testing.assert_array_equal(one.tensors["scores_out"], other.tensors["scores_out"])
    assert processes == {"ensemble": {f"mine_{step}" for step in STEPS}, "fused": {"mine_fused"}}[form]
