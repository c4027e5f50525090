"""Load by our own client: a number of requests always in flight, where perf_analyzer is not installed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from onestream.client import Client, OnestreamError


@dataclass(frozen=True, slots=True)
class Answers:
    """What the clients saw. ``images_per_s`` counts the answers that came within the time, or where none did, the first
    ones after it.
    """

    images_per_s: float
    p50_ms: float
    p99_ms: float


def keep_in_flight(
    url: str, model: str, images: Sequence[bytes], *, concurrency: int, duration_s: float, timeout_s: float = 60.0
) -> Answers:
    """Ask a model about the images in turn for ``duration_s`` seconds, ``concurrency`` requests at a time.

    ``url`` is an address as ``client.Client`` takes it. Raises ``OnestreamError`` with the first error that a request
    met.
    """
    answered: list[tuple[float, float]] = []  # when, and the latency in milliseconds
    errors: list[OnestreamError] = []
    with Client(url, timeout_s=timeout_s, retries=0) as client:
        client.max_body_bytes(model)
        beginning = monotonic()
        ending = beginning + duration_s

        def ask(worker: int) -> None:
            index = worker
            # Everyone asks at least once, so that a slow server has a speed too.
            while not errors and (index == worker or monotonic() < ending):
                began = monotonic()
                try:
                    client.infer(model, images[index % len(images)])
                except OnestreamError as error:
                    errors.append(error)
                    return
                now = monotonic()
                answered.append((now, (now - began) * 1000))
                index += concurrency

        # Daemons, so that an interrupt does not wait for their last answers.
        threads = [threading.Thread(target=ask, args=(worker,), daemon=True) for worker in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    in_time = [latency_ms for now, latency_ms in answered if now <= ending]
    if in_time:
        seen, took_s = in_time, duration_s
    else:
        seen, took_s = [latency_ms for _, latency_ms in answered], max(now for now, _ in answered) - beginning
    p50_ms, p99_ms = np.percentile(seen, [50, 99])
    return Answers(len(seen) / took_s, float(p50_ms), float(p99_ms))
