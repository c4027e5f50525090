"""A server that exists only as an object, so most of the client's behaviour is tested without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onestream.client import InferRequest, RegionSlice, SharedMemoryRegion, Tensors
from onestream.client._transports.refusals import RegionForgotten, refusal
from onestream.client.errors import ClientClosed, ServerRefused


def classification(*labels: tuple[str, int, float]) -> Tensors:
    """The outputs of a classification pipeline, each of shape [1, k]."""
    names = np.empty(len(labels), dtype=object)
    names[:] = [name.encode() for name, _, _ in labels]
    return {
        "scores": np.array([[score for _, _, score in labels]], np.float32),
        "class_ids": np.array([[class_id for _, class_id, _ in labels]], np.int32),
        "labels": names[None],
    }


def detections(*objects: tuple[str, int, float, Sequence[float]], size_hw: tuple[int, int] = (100, 200)) -> Tensors:
    """The outputs of a detection pipeline for a picture of ``size_hw``; an object is its name, id, score and box."""
    labels = classification(*((name, class_id, score) for name, class_id, score, _ in objects))
    boxes = np.array([box for *_, box in objects], np.float32).reshape(1, -1, 4)
    return {"boxes": boxes, **labels, "image_size": np.array([size_hw], np.int32)}


def reading(
    *lines: tuple[str, float, Sequence[Sequence[float]]], size_hw: tuple[int, int] = (100, 200), left_out: int = 0
) -> Tensors:
    """The outputs of a pipeline that reads text, for a picture of ``size_hw``; a line is its text, score and quad."""
    count = len(lines)
    names = np.empty((1, count), object)
    names[0] = [text.encode() for text, *_ in lines]
    return {
        "quads": np.array([quad for *_, quad in lines], np.float32).reshape(1, count, 4, 2),
        "texts": names,
        "scores": np.array([[score for _, score, _ in lines]], np.float32),
        "find_scores": np.full((1, count), 0.75, np.float32),
        "turn_degrees": np.full((1, count), 180, np.int32),
        "turn_scores": np.full((1, count), 0.5, np.float32),
        "image_size": np.array([size_hw], np.int32),
        "left_out": np.array([[left_out]], np.int32),
    }


def sorted_objects(
    *objects: tuple[str, str, Sequence[float]], size_hw: tuple[int, int] = (100, 200), left_out: int = 0
) -> Tensors:
    """The outputs of a cascade that finds objects and classifies each: its name, what it looks like, and its box.

    Each has two classes; the second is *other*.
    """
    count = len(objects)
    names, labels = np.empty((1, count), object), np.empty((1, count, 2), object)
    for index, (name, label, _) in enumerate(objects):
        names[0, index], labels[0, index] = name.encode(), (label.encode(), b"other")
    return {
        "boxes": np.array([box for *_, box in objects], np.float32).reshape(1, count, 4),
        "scores": np.tile(np.array([0.625, 0.25], np.float32), (1, count, 1)),
        "class_ids": np.tile(np.array([5, 7], np.int32), (1, count, 1)),
        "labels": labels,
        "detect_scores": np.full((1, count), 0.875, np.float32),
        "detect_class_ids": np.full((1, count), 47, np.int32),
        "detect_labels": names,
        "image_size": np.array([size_hw], np.int32),
        "left_out": np.array([[left_out]], np.int32),
    }


def echo_size(_model: str, data: bytes) -> Tensors:
    """One label whose class id is the number of bytes received."""
    return classification((f"{len(data)} bytes", len(data), 1.0))


KIND_OF = {
    "classify": "classification",
    "classify_fused": "classification",
    "detect": "detection",
    "read": "reading",
    "sort": "regions",
    "turned": "regions",
}
"""What pipelines of these names answer."""


def kind_of(tensors: Tensors) -> str:
    """The kind that a build would state for a pipeline with these outputs."""
    if "left_out" in tensors or "quads" in tensors:
        return "reading" if "texts" in tensors else "regions"
    kinds = {"boxes": "detection", "masks": "segmentation", "embedding": "embedding", "scores": "classification"}
    return next((kind for name, kind in kinds.items() if name in tensors), "raw")


class FakeTransport:
    """Answers with ``answer(model, data)``, which may also raise, and remembers what it was asked."""

    def __init__(
        self,
        answer: Callable[[str, bytes], Tensors] = echo_size,
        *,
        parameters: Mapping[str, str] | None = None,
        kinds: Mapping[str, str] = KIND_OF,
        steps: Sequence[str] = (),
        inputs: Sequence[Mapping[str, Any]] = (),
        opens_shared_memory: bool = True,
        closes_shared_memory: bool = False,
    ) -> None:
        self.answer = answer
        self.parameters = dict(parameters or {})
        self.kinds = kinds
        self.steps = steps
        self.inputs = inputs
        self.opens_shared_memory = opens_shared_memory
        self.closes_shared_memory = closes_shared_memory
        self.ready: Callable[[], bool] = lambda: True
        self.inferences: list[tuple[InferRequest, float]] = []
        self.config_calls = 0
        self.regions: dict[str, SharedMemoryRegion] = {}
        self.regions_in_use: set[str] = set()
        self.is_closed = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return "fake://server:1"

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        self._require_open()
        with self._lock:
            self.inferences.append((request, timeout_s))
        return self.answer(request.model, self._bytes_of(request))

    def is_ready(self, _model: str | None, *, timeout_s: float) -> bool:
        self._require_open()
        assert timeout_s > 0
        return self.ready()

    def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        self._require_open()
        assert timeout_s > 0
        return {"name": "fake", "version": "1", "extensions": ["statistics"]}

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        self._require_open()
        assert timeout_s > 0
        self.config_calls += 1
        config: dict[str, Any] = {"name": model, "input": self.inputs}
        stated = self.parameters | ({"kind": self.kinds[model]} if model in self.kinds else {})
        if stated:
            config["parameters"] = {key: {"string_value": value} for key, value in stated.items()}
        if self.steps:
            config["ensemble_scheduling"] = {"step": [{"model_name": name} for name in self.steps]}
        return config

    def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        assert timeout_s > 0
        count = len(self.inferences)
        phase = {"count": str(count), "ns": str(count * 2_000_000)}
        return [
            {
                "name": model,
                "inference_count": str(count),
                "execution_count": str((count + 1) // 2),
                "inference_stats": {"success": phase, "queue": phase, "compute_infer": phase},
            }
        ]

    def register_region(self, region: SharedMemoryRegion, *, timeout_s: float) -> None:
        assert timeout_s > 0
        if self.closes_shared_memory:
            raise refusal("UNAVAILABLE", "This protocol is restricted, expecting header 'x'", model=None, url=self.url)
        if not self.opens_shared_memory:
            raise ServerRefused("Unable to open shared memory region", status="INTERNAL")
        assert Path(f"/dev/shm/{region.name}").stat().st_size >= region.byte_size
        self.regions[region.name] = region

    def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        assert timeout_s > 0
        if region_name in self.regions_in_use:
            raise ServerRefused("it is currently in use", status="INTERNAL")
        self.regions.pop(region_name, None)

    def close(self) -> None:
        self.is_closed = True

    def _require_open(self) -> None:
        if self.is_closed:
            raise ClientClosed("closed")

    def _bytes_of(self, request: InferRequest) -> bytes:
        if not isinstance(request.image, RegionSlice):
            return request.image
        if request.image.region_name not in self.regions:
            raise RegionForgotten(f"unknown region {request.image.region_name}")
        with Path(f"/dev/shm/{request.image.region_name}").open("rb") as file:
            return file.read(request.image.byte_size)
