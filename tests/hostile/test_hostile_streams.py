"""Hostile streams against a real server, direct and through the proxy: it lives, and good streams are unharmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clip_files import write_video
from proxies import plain_proxy
from small_models import running

from benchmarks.hostile.streams import KINDS, measure
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

ROUNDS = 4
"""Streams of each kind: half of them with the metadata by which tritonserver died, of which three were enough."""


@pytest.fixture(scope="module")
def attacked(repository: Path) -> Iterator[Server]:
    """A server of its own: one that dies shall not take other tests with it."""
    models = ["classify_video", "classify_model", "classify"]
    with running(repository, models=models) as server:
        yield server


@pytest.fixture(params=["direct", pytest.param("proxy", marks=pytest.mark.needs_nginx)])
def url(request: pytest.FixtureRequest, attacked: Server, tmp_path: Path) -> Iterator[str]:
    if request.param == "direct":
        yield attacked.grpc_url
        return
    with plain_proxy(tmp_path / "output", http=attacked.http_address, grpc=attacked.grpc_address) as (_, grpc):
        yield f"grpc://{grpc}"


def test_the_server_lives_and_good_streams_are_unharmed(attacked: Server, url: str, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=20, size_hw=(240, 320))
    pid = attacked.pid
    said: list[str] = []
    found: dict[str, Any] = measure(url=url, clip=clip, streams=ROUNDS * len(KINDS), seed=3, progress=said.append)
    assert found["alive"]
    assert found["hurt"] == []
    assert found["good_streams"] > 1
    assert attacked.is_running
    assert attacked.pid == pid
    assert attacked.restarts == {}
    # Where the server says why it ends a stream, it says the right thing.
    for kind, code in {
        "pictures too large": "too_large",
        "unknown codec": "unsupported_codec",
        "too many frames a second": "too_fast",
        "an older version": "bad_message",
        "garbage as a message": "bad_message",
        "garbage alone": "bad_message",
        "flood of start codes": "failed",
        "flood of information": "failed",
        "a packet beyond the buffer": "too_large",
        "credit without end": "flow",
        "bad pictures": "Triton's error",
    }.items():
        assert found["ends"][kind] == {code: ROUNDS}
