"""Load by our own client: a number of requests always in flight, where perf_analyzer is not installed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from client import Client, OnestreamError


@dataclass(frozen=True, slots=True)
class Answers:
    """What the clients saw. ``images_per_s`` counts the answers that came within the time."""

    images_per_s: float
    p50_ms: float
    p99_ms: float


def keep_in_flight(
    url: str, model: str, images: Sequence[bytes], *, concurrency: int, duration_s: float, timeout_s: float = 60.0
) -> Answers:
    """Ask a model about the images in turn for ``duration_s`` seconds, ``concurrency`` requests at a time.

    ``url`` is an address as ``client.Client`` takes it. Raises ``OnestreamError`` with the first error that a request
    met, and ``TimeoutError`` where no answer came within the time.
    """
    latencies_ms: list[list[float]] = [[] for _ in range(concurrency)]
    errors: list[OnestreamError] = []
    with Client(url, timeout_s=timeout_s, retries=0) as client:
        client.max_body_bytes(model)
        ending = monotonic() + duration_s

        def ask(worker: int) -> None:
            index = worker
            while not errors:
                began = monotonic()
                if began >= ending:
                    return
                try:
                    client.infer(model, images[index % len(images)])
                except OnestreamError as error:
                    errors.append(error)
                    return
                now = monotonic()
                if now <= ending:
                    latencies_ms[worker].append((now - began) * 1000)
                index += concurrency

        # Daemons, so that an interrupt does not wait for their last answers.
        threads = [threading.Thread(target=ask, args=(worker,), daemon=True) for worker in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    seen = [value for own in latencies_ms for value in own]
    if not seen:
        raise TimeoutError(f"{model} gave no answer within {duration_s:.1f} s at concurrency {concurrency}")
    p50_ms, p99_ms = np.percentile(seen, [50, 99])
    return Answers(len(seen) / duration_s, float(p50_ms), float(p99_ms))
