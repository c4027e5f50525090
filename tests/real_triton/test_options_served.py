"""Options and flags of Triton's own, and one form alone, from the pipeline file to a real Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml
from builds import build
from networks import mean_color

from onestream.client import Client
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
LARGEST = {"model_warmup": [{"name": "largest", "batch_size": 8}]}
OPTIONS: dict[str, dict[str, Any]] = {
    "mine": {
        "triton": {
            "preprocess": {"response_cache": {"enable": True}},
            "fused": {**LARGEST, "instance_group": [{"count": 2}]},
            "model": LARGEST,
        }
    },
    "apart": {"forms": ["ensemble"]},
    "whole": {"forms": ["fused"]},
}
"""Of each pipeline, what its file says under ``serving``."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Of their own, for its flags, a cache of decoded pixels, and for its processes."""
    folder = tmp_path_factory.mktemp("options")
    operations = [
        {"op": "decode"},
        {"op": "letterbox", "size": [48, 64], "value": 114},
        {"op": "normalize", "mean": [0, 0, 0], "std": [1, 1, 1]},
    ]
    network = folder / "mine.onnx"
    network.write_bytes(mean_color(("n", 3, 48, 64)).SerializeToString())
    for name, serving in OPTIONS.items():
        described = {"preprocess": {"operations": operations}, "postprocess": {"kind": "raw"}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(described | {"serving": {"cpu_instances": 1, **serving}}))
        build(folder / f"{name}.yaml", folder=folder / "repository", onnx_file=network)
    flags = ["--cache-config=local,size=4194304"]
    with Server(folder / "repository", http_port=0, grpc_port=0, metrics_port=0, flags=flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url, timeout_s=60) as client:
        yield client


def test_options_and_flags_have_effect(client: Client, photos: dict[str, bytes]) -> None:
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


@pytest.mark.parametrize(("name", "roles"), [("apart", ("preprocess", "model", "postprocess")), ("whole", ("fused",))])
def test_one_form_answers_to_both_names(
    name: str, roles: tuple[str, ...], server: Server, client: Client, photos: dict[str, bytes]
) -> None:
    one, other = (client.predict(photos["cat"], pipeline=asked) for asked in (name, f"{name}_fused"))
    np.testing.assert_array_equal(one.tensors["scores_out"], other.tensors["scores_out"])
    models = {process.model for process in find_model_processes(server.pid).running}
    assert {model for model in models if model.startswith(name)} == {f"{name}_{role}" for role in roles}
