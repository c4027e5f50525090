"""The CUDA memory pool of a real Triton on a GPU, filled: what finds no room in it must be right, and not another's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from onestream.client import Client
from onestream.serving.server.server import Server

pytestmark = [
    pytest.mark.needs_gpu,
    pytest.mark.needs_triton,
    # As Triton's container has, whose backends run on a GPU.
    pytest.mark.needs_engine("tensorrt"),
    pytest.mark.slow,
]
HELD = 6
"""Pictures that the pool holds."""
CROWD, ROUNDS = 64, 10


@pytest.fixture(scope="module")
def log() -> list[str]:
    return []


@pytest.fixture(scope="module")
def full(repository: Path, log: list[str]) -> Iterator[Server]:
    flags = [f"--cuda-memory-pool-byte-size=0:{HELD * 224 * 224 * 3}"]
    with Server(
        repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        device="gpu",
        models=["classify"],
        flags=flags,
        startup_timeout_s=1200,
        on_log=log.append,
    ) as server:
        yield server


def test_pictures_that_find_the_pool_full_get_their_own_answers(
    full: Server, photos: dict[str, bytes], log: list[str]
) -> None:
    asked = list(photos.values())
    with Client(full.grpc_url, timeout_s=60) as client, ThreadPoolExecutor(CROWD) as crowd:
        # One at a time always fits.
        alone = [client.infer("classify", photo)["scores"] for photo in asked]
        turns = list(range(len(asked))) * (ROUNDS * CROWD // len(asked))
        found = crowd.map(lambda turn: client.infer("classify", asked[turn])["scores"], turns)
        for turn, scores in zip(turns, found, strict=True):
            np.testing.assert_allclose(scores, alone[turn], atol=1e-3)
    assert any("Failed to allocate CUDA memory" in line for line in log), "the pool was not filled"
