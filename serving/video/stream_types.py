"""What a stream in the server is made of: its frames, its decoder, its way back to the client, and what waits where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from onestream.preprocess.video.common.color import Colors
from onestream.serving.video.bounds import BadStream
from onestream.wire.video import Event, Packet

Tensors = dict[str, npt.NDArray[Any]]


class Frame(Protocol):
    """A decoded and preprocessed frame (``onestream.preprocess.video.streams.stream.StreamFrame``)."""

    index: int
    pts: int | None
    pts_seconds: float | None
    pixels: npt.NDArray[np.uint8]


class Decoder(Protocol):
    """Packets to frames (``onestream.preprocess.video.streams.stream.StreamDecoder``)."""

    decoded: int
    concealed: int
    unshown: int
    colors: Colors | None

    def feed(self, packet: Packet | None) -> list[Any]:
        """Frames in the order of display; None ends the stream."""
        ...


class ResponseSink(ABC):
    """The way back to one client. May be used by any thread, one at a time."""

    @abstractmethod
    def send(self, event: Event, tensors: Tensors) -> None:
        """Send an event, with the tensors of its results; their first dimension is ``event.frames``."""

    @abstractmethod
    def end(self, event: Event | None, error: BadStream | None) -> None:
        """Say the last word, or nothing to a client that is gone; ``error`` is why, where the event is a refusal."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether the client cancelled or vanished."""


@dataclass(slots=True)
class Slot:
    """A frame's place in the order of results."""

    frame: Any
    received_s: float
    tensors: Tensors | None = None


@dataclass(slots=True)
class Totals:
    """What became of a stream so far."""

    consumed_bytes: int = 0
    inferred: int = 0
    dropped: int = 0
    latency_ms: float = 0.0


@dataclass(slots=True)
class Queues:
    """Packets and frames by where they wait; ``leaving`` are frames that are finished and sent at this moment."""

    inbox: deque[tuple[Packet, float]] = field(default_factory=deque)
    inbox_bytes: int = 0
    frames: deque[Slot] = field(default_factory=deque)
    in_flight: deque[Slot] = field(default_factory=deque)
    inferred: deque[Slot] = field(default_factory=deque)
    leaving: int = 0
