"""A fake server that watches the client, and a clip, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clip_files import write_video
from fake_server import FakeServer

from onestream.client import Client


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running
    assert running.faults == []


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.url, timeout_s=5) as client:
        yield client


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pictures in 1.6 s, with B-frames; its index comes first, as a pipe needs it."""
    path, options = tmp_path_factory.mktemp("clips") / "clip.mp4", {"g": "10", "bf": "2"}
    return write_video(path, "libx264", options=options, container_options={"movflags": "faststart"}, count=40)
