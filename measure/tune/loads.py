"""What puts load on a server under test: perf_analyzer where it is installed, else our own client."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from onestream.client import OnestreamError
from onestream.measure.load import perf_analyzer
from onestream.measure.load.in_flight import keep_in_flight
from onestream.measure.tune.decide import Measurement


class LoadFailed(Exception):
    """A measurement did not succeed; the message says why."""


class Load(Protocol):
    """Keeps ``concurrency`` requests in flight. ``tool`` names what does it, with its version."""

    tool: str
    concurrency: int

    def measure(self, grpc_address: str, model: str, *, duration_s: float) -> Measurement:
        """Load a model for ``duration_s`` seconds. Raises ``LoadFailed``."""


class PerfAnalyzer:
    """Load by perf_analyzer. ``folder`` takes its input file."""

    def __init__(self, command: list[str], images: Sequence[bytes], *, concurrency: int, folder: Path) -> None:
        self.tool = f"perf_analyzer {perf_analyzer.version(command)}"
        self.concurrency = concurrency
        self._command = command
        self._images = folder / "images.json"
        self._images.write_text(perf_analyzer.input_data(images))

    def measure(self, grpc_address: str, model: str, *, duration_s: float) -> Measurement:
        """Load a model; one failed run is repeated."""
        for last in (False, True):
            try:
                export = perf_analyzer.measure(
                    self._command,
                    model=model,
                    address=grpc_address,
                    transport="grpc",
                    load=perf_analyzer.Load(kind="concurrency", value=self.concurrency),
                    photos=self._images,
                    duration_s=duration_s,
                )
            except perf_analyzer.PerfAnalyzerError as error:
                if last:
                    raise LoadFailed(str(error)) from None
            else:
                break
        return Measurement(images_per_s=export.inferences_per_s, p50_ms=export.p50_ms, p99_ms=export.p99_ms)


class OwnClient:
    """Load by ``client.Client``, which needs more of the machine's CPU than perf_analyzer, for every setting alike."""

    def __init__(self, images: Sequence[bytes], *, concurrency: int) -> None:
        self.tool = "onestream's client"
        self.concurrency = concurrency
        self._images = list(images)

    def measure(self, grpc_address: str, model: str, *, duration_s: float) -> Measurement:
        """Load a model."""
        try:
            seen = keep_in_flight(
                grpc_address, model, self._images, concurrency=self.concurrency, duration_s=duration_s
            )
        except OnestreamError as error:
            raise LoadFailed(str(error)) from None
        return Measurement(images_per_s=seen.images_per_s, p50_ms=seen.p50_ms, p99_ms=seen.p99_ms)


def open_load(images: Sequence[bytes], *, concurrency: int, folder: Path) -> Load:
    """The best load there is on this machine.

    Raises ``perf_analyzer.PerfAnalyzerError`` where ``$PERF_ANALYZER`` names something that cannot be run.
    """
    if os.environ.get(perf_analyzer.VARIABLE) or shutil.which("perf_analyzer"):
        command = perf_analyzer.find_perf_analyzer()
        return PerfAnalyzer(command, images, concurrency=concurrency, folder=folder)
    return OwnClient(images, concurrency=concurrency)
