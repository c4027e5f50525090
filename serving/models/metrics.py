"""Our counters among Triton's metrics: time and batches by step, and bad images by reason.

onestream_step_microseconds_total{model,step}   time spent in a step, of the GPU where it runs there
onestream_step_batches_total{model,step}        batches that went through it
onestream_bad_images_total{model,reason}        images refused, by error code
onestream_objects_total{model,label}            objects found, by class
onestream_regions_total{model,stage}            regions that a stage of a cascade worked on
onestream_regions_left_out_total{model}         objects, lines and regions that were found above the bounds of a picture
onestream_candidates_full_total{model}          pictures with at least ``max_candidates`` above the threshold
onestream_candidates_dropped_total{model}       values of a network that are of no use: not finite, or of no known class
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import triton_python_backend_utils as pb_utils

from onestream.serving.models.loaded import Counts

_FLUSH_S = 1.0
_MOST_CLASSES, _OTHERS = 2000, b"others"
"""Classes of objects with a series of their own (LVIS has 1,203); a network without names may say any number."""

_TEXTS = {
    "onestream_step_microseconds_total": "Time spent in a step, in microseconds",
    "onestream_step_batches_total": "Batches that went through a step",
    "onestream_bad_images_total": "Images and streams refused, by reason",
    "onestream_objects_total": "Objects found, by class",
    "onestream_candidates_dropped_total": "Values of a network that are of no use: not finite, or of no known class",
    "onestream_regions_total": "Regions that a stage of a cascade worked on",
    "onestream_regions_left_out_total": "Regions that were found above the bounds of a picture, in number or pixels",
    "onestream_candidates_full_total": "Pictures of which a detector's max_candidates may have cut some off",
    "onestream_video_frames_total": "Frames of video streams, by what became of them",
    "onestream_video_latency_microseconds_total": "Time from the receipt of frames to their results, in microseconds",
    "onestream_video_streams": "Video streams that are open",
}
_GAUGES = ("onestream_video_streams",)

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""Family and labels."""


class ModelMetrics(Counts):
    """The metrics of one model instance. Thread-safe.

    Counting is cheap; what was counted reaches Triton once a second, since every change there is a message between
    processes.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._families: dict[str, Any] = {}
        self._metrics: dict[_Key, Any] = {}
        self._waiting: Counter[_Key] = Counter()
        self._levels: dict[_Key, float] = {}
        self._classes: set[bytes] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._flush_regularly, name="metrics", daemon=True)
        self._thread.start()

    def step(self, step: str, milliseconds: float) -> None:
        """Count a batch that spent ``milliseconds`` in a step."""
        self.count("onestream_step_microseconds_total", round(milliseconds * 1000), step=step)
        self.count("onestream_step_batches_total", 1, step=step)

    def bad_image(self, reason: str) -> None:
        """Count an image that was refused."""
        self.count("onestream_bad_images_total", 1, reason=reason)

    def objects(self, labels: Iterable[bytes]) -> None:
        """Count objects that were found, by the names of their classes."""
        counted = Counter(labels)
        with self._lock:
            for label in counted:
                if len(self._classes) < _MOST_CLASSES:
                    self._classes.add(label)
            own = self._classes & counted.keys()
        for label, found in counted.items():
            self.count("onestream_objects_total", found, label=(label if label in own else _OTHERS).decode())

    def count(self, family: str, more: int, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._waiting[family, tuple(labels.items())] += more

    def level(self, family: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._levels[family, ()] = value

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
            levels, self._levels = self._levels, {}
        for key, more in counted.items():
            self._change(key, "increment", more)
        for key, value in levels.items():
            self._change(key, "set", value)

    def _change(self, key: _Key, how: str, value: float) -> None:
        try:
            getattr(self._metric(key), how)(value)
        except Exception as error:  # one that Triton refuses must not end the thread of all
            pb_utils.Logger.log_error(f"{self._model}: a metric could not be changed: {error}")

    def _metric(self, key: _Key) -> Any:
        name, labels = key
        if name not in self._families:
            kind = pb_utils.MetricFamily.GAUGE if name in _GAUGES else pb_utils.MetricFamily.COUNTER
            self._families[name] = pb_utils.MetricFamily(name=name, description=_TEXTS[name], kind=kind)
        if key not in self._metrics:
            self._metrics[key] = self._families[name].Metric(labels={"model": self._model, **dict(labels)})
        return self._metrics[key]
