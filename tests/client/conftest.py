"""Both clients, and the toy models on the shared server, for the tests of this folder."""

from __future__ import annotations

import pytest
from both_clients import CLIENTS, Connect
from shared_server import Served, SharedServer
from toy_models import write_toys

TOYS = Served("toys", write_toys, standing=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes the toys."""
    for item in items:
        if "toy_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.serves(TOYS))


@pytest.fixture(scope="session")
def toy_server(server: SharedServer) -> SharedServer:
    """The shared server, which has the toys."""
    return server


@pytest.fixture(params=CLIENTS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """Opens one client and then the other, as ``Client`` does."""
    return CLIENTS[request.param]
