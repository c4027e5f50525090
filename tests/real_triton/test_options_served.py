"""Options and flags of Triton's own, and one form alone, from the pipeline file to a real Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from networks import mean_color
from shared_server import SharedServer
from test_own_pipeline import ONE_PROCESS, own

from onestream.client import Client
from onestream.serving.server.triton.model_processes import find_model_processes

LARGEST = {"model_warmup": [{"name": "largest", "batch_size": 8}]}
OPTIONS: dict[str, dict[str, Any]] = {
    "apart": {
        "forms": ["ensemble"],
        "triton": {"preprocess": {"response_cache": {"enable": True}}, "model": LARGEST},
    },
    "whole": {"forms": ["fused"], "triton": {"fused": {**LARGEST, "instance_group": [{"count": 2}]}}},
}
"""Of each pipeline, what its file says under ``serving``."""


NETWORK = mean_color(("n", 3, 48, 64))
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(*(own(name, network=NETWORK, serving=ONE_PROCESS | said) for name, said in OPTIONS.items())),
]


@pytest.fixture(scope="module")
def client(server: SharedServer) -> Iterator[Client]:
    with Client(server.grpc_url, timeout_s=60) as client:
        yield client


def test_options_and_flags_have_effect(client: Client, photos: dict[str, bytes]) -> None:
    first, second, fused = (client.infer(name, photos["cat"]) for name in ("apart", "apart", "whole"))
    counts = {
        model: (statistics.inference_count, statistics.execution_count)
        for model in ("apart_preprocess", "apart_model", "whole_fused")
        if (statistics := client.statistics(model))
    }
    for answer in (second, fused):
        np.testing.assert_array_equal(first["scores_out"], answer["scores_out"])
    # Warm-ups count: of one image; of the largest batch, in each of two instances where the options say so.
    assert counts == {"apart_preprocess": (1 + 1, 2), "apart_model": (8 + 2, 3), "whole_fused": (2 * 8 + 1, 3)}


@pytest.mark.parametrize(("name", "roles"), [("apart", ("preprocess", "model", "postprocess")), ("whole", ("fused",))])
def test_one_form_answers_to_both_names(
    name: str, roles: tuple[str, ...], server: SharedServer, client: Client, photos: dict[str, bytes]
) -> None:
    one, other = (client.predict(photos["cat"], pipeline=asked) for asked in (name, f"{name}_fused"))
    np.testing.assert_array_equal(one.tensors["scores_out"], other.tensors["scores_out"])
    models = {process.model for process in find_model_processes(server.pid).running}
    assert {model for model in models if model.startswith(name)} == {f"{name}_{role}" for role in roles}
