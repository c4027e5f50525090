"""The typed answers of a served pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onestream.client.errors import OnestreamError


@dataclass(frozen=True, slots=True)
class Label:
    """One class that the network considered, with its score (the larger, the more likely).

    ``label`` is its name; the id as text where the server sends no names.
    """

    label: str
    class_id: int
    score: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"label": self.label, "class_id": self.class_id, "score": self.score}


@dataclass(frozen=True, slots=True)
class Classification:
    """The classes of one image, best first; there is at least one.

    ``latency_ms`` runs from handing the request to the transport until its answer was read, retries
    included; reading and encoding the image are not in it. ``request_id`` also appears in the server's log.
    """

    labels: tuple[Label, ...]
    model: str
    request_id: str
    latency_ms: float

    @property
    def top(self) -> Label:
        """The label with the highest score."""
        return self.labels[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "model": self.model,
            "request_id": self.request_id,
            "latency_ms": self.latency_ms,
            "labels": [label.to_dict() for label in self.labels],
        }


@dataclass(frozen=True, slots=True)
class Item:
    """The outcome for one image of many: exactly one of ``result`` and ``error`` is set.

    ``index`` counts the images from 0, ``source`` is the object that was given.
    """

    index: int
    source: object
    result: Classification | None = None
    error: OnestreamError | None = None

    def __post_init__(self) -> None:
        if (self.result is None) == (self.error is None):
            raise ValueError("an Item holds either a result or an error, exactly one of them")

    def unwrap(self) -> Classification:
        """The result, or the error raised."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers at an address: ``name`` and ``version`` are the server's own words."""

    url: str
    name: str
    version: str
    extensions: tuple[str, ...]
