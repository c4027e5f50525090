"""The one server whose models are changed, held and killed, and a cascade of it whose networks note what they get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trace_collector import Collector

from onestream.serving.server.server import Server

CARRIED = ("carried", "carried_fused")
FIND, NAME = "carried_find_model", "carried_name_model"
WATCHED = """
import json
from pathlib import Path
from time import sleep

from onestream.serving.models.image import Network

FOLDER = Path({folder!r})


class TritonPythonModel(Network):
    def answer(self, requests):
        with (FOLDER / f"{{self.name}}.asked").open("a") as file:
            for request in requests:
                file.write(json.dumps([request.request_id(), request.timeout()]) + "\\n")
        while (FOLDER / f"{{self.name}}.held").exists():
            sleep(0.01)
        return super().answer(requests)
"""
"""A network that notes id and timeout of its requests, and lets them wait as long as a file is there."""


@dataclass(frozen=True)
class Watched:
    """A server, what it said of itself, the collector of its traces, and the folder of its pipelines and notes."""

    server: Server
    events: list[str]
    collector: Collector
    folder: Path

    def asked(self, network: str, request_id: str) -> list[int]:
        """The timeouts, in microseconds, of the requests with this id that the network was given so far."""
        path = self.folder / f"{network}.asked"
        noted = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [timeout_us for name, timeout_us in noted if name == request_id]

    @contextmanager
    def held(self, network: str) -> Iterator[None]:
        """The network answers nothing."""
        file = self.folder / f"{network}.held"
        file.touch()
        try:
            yield
        finally:
            file.unlink()
