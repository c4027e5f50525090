"""What a stream in the server is made of: states, frames, a decoder, the way back to the client, and queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from onestream.preprocess.video.common.color import Colors
from onestream.serving.video.bounds import BadStream
from onestream.wire.video import Event, Packet

Tensors = dict[str, npt.NDArray[Any]]


class State(Enum):
    """How far a stream is. It never goes back, and it may end at any time.

    ::

        RECEIVING ──close──► CLOSING ──inbox is empty──► FLUSHING ──decoder is empty──► DRAINING ──results left──► ENDED
            └───────────────────┴───────────────────────────┴─────────────────────────────┴────── an error ─────────▲
    """

    RECEIVING = "packets may come"
    CLOSING = "the client sends no more packets; those that wait are decoded"
    FLUSHING = "all packets were decoded; the decoder gives the frames that it held back"
    DRAINING = "all frames were decoded; the last results are on their way"
    ENDED = "the last word was said; nothing follows"

    def to(self, following: State) -> State:
        """Return ``following``. Raises ``ForbiddenTransition`` where ``TRANSITIONS`` does not allow it here."""
        if following not in TRANSITIONS[self]:
            raise ForbiddenTransition(f"a stream that is {self.name} cannot become {following.name}")
        return following


TRANSITIONS: dict[State, frozenset[State]] = {
    State.RECEIVING: frozenset({State.CLOSING, State.ENDED}),
    State.CLOSING: frozenset({State.FLUSHING, State.ENDED}),
    State.FLUSHING: frozenset({State.DRAINING, State.ENDED}),
    State.DRAINING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}
"""The states that may follow each state."""


class ForbiddenTransition(RuntimeError):
    """A stream was to go to a state that may not follow its own: the server's bookkeeping is wrong."""


class Frame(Protocol):
    """A decoded and preprocessed frame (``onestream.preprocess.video.streams.stream.StreamFrame``)."""

    index: int
    pts: int | None
    pts_seconds: float | None
    source_pts: int | None
    pixels: npt.NDArray[np.uint8]


class Decoder(Protocol):
    """Makes frames of packets (``onestream.preprocess.video.streams.stream.StreamDecoder``)."""

    decoded: int
    concealed: int
    unshown: int
    colors: Colors | None

    def feed(self, packet: Packet | None) -> list[Any]:
        """Decode a packet; None ends the stream. Returns frames in the order of display."""
        ...


class ResponseSink(ABC):
    """The way back to one client. Any thread may use it, one at a time."""

    @abstractmethod
    def send(self, event: Event, tensors: Tensors) -> None:
        """Send an event, with the tensors of its results; their first dimension is ``event.frames``."""

    @abstractmethod
    def end(self, event: Event | None, error: BadStream | None) -> None:
        """Send the last event, or none to a client that is gone; ``error`` is why, where the event is a refusal."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether the client cancelled or vanished."""


@dataclass(slots=True)
class Slot:
    """A frame's place in the order of results."""

    frame: Any
    received_s: float
    tensors: Tensors | None = None

    @property
    def kind(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Names, shapes and datatypes of its results: those of one kind fit into the same arrays."""
        return [(name, value.shape, value.dtype.str) for name, value in (self.tensors or {}).items()]

    def latency_ms(self, now_s: float) -> float:
        """Milliseconds since its packet was received; ``now_s`` is of ``time.monotonic``."""
        return 1000 * (now_s - self.received_s)

    def fields(self, now_s: float) -> dict[str, Any]:
        """What an event of *results* says of it."""
        return {
            "index": self.frame.index,
            "pts": self.frame.pts,
            "pts_seconds": self.frame.pts_seconds,
            "latency_ms": round(self.latency_ms(now_s), 3),
        }


@dataclass(slots=True)
class Totals:
    """What became of a stream so far."""

    consumed_bytes: int = 0
    inferred: int = 0
    dropped: int = 0
    latency_ms: float = 0.0


@dataclass(slots=True)
class Queues:
    """Frames by where they wait; ``leaving`` are those that are finished and sent at this moment."""

    frames: deque[Slot] = field(default_factory=deque)
    in_flight: deque[Slot] = field(default_factory=deque)
    inferred: deque[Slot] = field(default_factory=deque)
    leaving: int = 0

    @property
    def held(self) -> int:
        """How many frames the server holds."""
        return len(self.frames) + len(self.in_flight) + len(self.inferred) + self.leaving
