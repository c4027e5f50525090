"""Counters of ours among Triton's metrics: time and batches by step, and bad images by reason.

onestream_step_microseconds_total{model,step}   time spent in a step, of the GPU where it runs there
onestream_step_batches_total{model,step}        batches that went through it
onestream_bad_images_total{model,reason}        images refused, by error code
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import triton_python_backend_utils as pb_utils

_FLUSH_S = 1.0

_FAMILIES = {
    "onestream_step_microseconds_total": "Time spent in a step, in microseconds",
    "onestream_step_batches_total": "Batches that went through a step",
    "onestream_bad_images_total": "Images refused, by reason",
}


class ModelMetrics:
    """The counters of one model instance. Thread-safe.

    Counting is cheap; what was counted reaches Triton once a second, since every increment there is a message between
    processes.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._families = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.COUNTER)
            for name, text in _FAMILIES.items()
        }
        self._metrics: dict[tuple[str, str, str], Any] = {}
        self._waiting: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._flush_regularly, name="metrics", daemon=True)
        self._thread.start()

    def step(self, step: str, milliseconds: float) -> None:
        """Count a batch that spent ``milliseconds`` in a step."""
        with self._lock:
            self._waiting["onestream_step_microseconds_total", "step", step] += round(milliseconds * 1000)
            self._waiting["onestream_step_batches_total", "step", step] += 1

    def bad_image(self, reason: str) -> None:
        """Count an image that was refused."""
        with self._lock:
            self._waiting["onestream_bad_images_total", "reason", reason] += 1

    def close(self) -> None:
        """Deliver what is left and stop."""
        self._closed.set()
        self._thread.join()

    def _flush_regularly(self) -> None:
        while not self._closed.wait(_FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            counted, self._waiting = self._waiting, Counter()
        for key, value in counted.items():
            if key not in self._metrics:
                family, label, name = key
                self._metrics[key] = self._families[family].Metric(labels={"model": self._model, label: name})
            self._metrics[key].increment(value)
