"""A fake server that watches the client, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
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
