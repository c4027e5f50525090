"""A real Triton that serves the toy models, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from toy_models import write_toys

from onestream.serving.server.server import Server


@pytest.fixture(scope="session")
def toy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on free ports of this machine, with shared memory open."""
    repository = tmp_path_factory.mktemp("toys")
    write_toys(repository)
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, device="cpu", shared_memory=True) as server:
        yield server
