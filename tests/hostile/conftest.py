"""The server that these tests try to hurt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from closed_server import Closed, passwords_seen
from small_models import running


@pytest.fixture(scope="session")
def closed(repository: Path) -> Iterator[Closed]:
    """Not the shared one, whose callers may use shared memory, and since these tests try to end it."""
    events: list[str] = []
    models = ["classify", "classify_fused", "classify_video", "classify_model"]
    with ExitStack() as stack:
        with passwords_seen() as passwords:
            server = stack.enter_context(running(repository, device="cpu", models=models, on_event=events.append))
        yield Closed(server, events, passwords)
