"""Both forms by a real Triton server: ``classify_fused`` against the ensemble ``classify``."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.gpu.measure import reason
from benchmarks.gpu.results import Kept, Rate
from benchmarks.gpu.setup import Setup
from onestream.serving.server.errors import TritonNotFound
from onestream.serving.server.triton.installation import find_triton, resolve_device

if TYPE_CHECKING:
    from onestream.serving.server.server import Server

CONCURRENCY = 128
"""Requests in flight: enough for two full batches of the default size."""
_STARTUP_TIMEOUT_S = 300.0
_WARMUP_SHARE = 0.5
_PHOTOS = 32


def why_not() -> str | None:
    """Why no Triton here can serve on a GPU, or None where one can."""
    try:
        installation = find_triton()
    except TritonNotFound as error:
        return f"no Triton with GPU backends here: {reason(error)}"
    if resolve_device("auto", installation) != "gpu":
        return "no Triton with GPU backends here: the embedded one has none"
    if importlib.util.find_spec("tritonclient") is None:
        return "the client needs tritonclient, which is not installed"
    return None


def measure_served(setup: Setup, *, kept: Kept, device: Literal["cpu", "gpu"], concurrency: int = CONCURRENCY) -> None:
    """Keep images per second of both forms by one server, in turns: by perf_analyzer, else by our own client.

    Raises ``onestream.serving.server.errors.ServerError`` where the server does not start, and what a load raises.
    """
    from onestream.serving.server.server import Server

    name = setup.pipeline.name
    models = [name, f"{name}_fused"]
    with Server(
        setup.repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        device=device,
        models=models,
        startup_timeout_s=_STARTUP_TIMEOUT_S,
        on_event=setup.progress,
    ) as server:
        for photos in setup.photos:
            load = _Load(server, photos.contents[:_PHOTOS], concurrency)
            for model in models:
                load(model, setup.plan.served_s * _WARMUP_SHARE)
            for index in range(setup.plan.rounds):
                setup.progress(f"served, {photos.size}: round {index + 1} of {setup.plan.rounds}")
                for model in models if index % 2 == 0 else models[::-1]:
                    rate = Rate(
                        round=index,
                        part="served",
                        setting=model,
                        size=photos.size,
                        batch=1,
                        in_flight=concurrency,
                        images_per_s=load(model, setup.plan.served_s),
                    )
                    kept.add(rates=[rate])


class _Load:
    """Keeps requests in flight, and tells images per second."""

    def __init__(self, server: Server, photos: Sequence[bytes], concurrency: int) -> None:
        from onestream.measure.load.perf_analyzer import PerfAnalyzerError, find_perf_analyzer

        self._server, self._photos, self._concurrency = server, photos, concurrency
        try:
            self._command = find_perf_analyzer()
        except PerfAnalyzerError:
            self._command = []

    def __call__(self, model: str, duration_s: float) -> float:
        if not self._command:
            from onestream.measure.load.in_flight import keep_in_flight

            url = self._server.grpc_url
            return keep_in_flight(
                url, model, self._photos, concurrency=self._concurrency, duration_s=duration_s
            ).images_per_s
        from onestream.measure.load.perf_analyzer import Load, input_data, measure

        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(input_data(self._photos))
            file.flush()
            return measure(
                self._command,
                model=model,
                address=self._server.grpc_address,
                transport="grpc",
                load=Load(kind="concurrency", value=self._concurrency),
                photos=Path(file.name),
                duration_s=duration_s,
            ).inferences_per_s
