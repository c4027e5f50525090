"""Measures how long each step of a batch took on a GPU, by events on its stream."""

from __future__ import annotations

from onestream.preprocess.cuda.device import Event, Stream


class StepTimer:
    """Marks the ends of steps on one stream and adds up what lies between them, without waiting."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._events: list[Event] = []
        self._steps: list[str] = []

    def start(self) -> None:
        """Begin a batch. What was marked before is forgotten."""
        self._steps.clear()
        self._record()

    def mark(self, step: str) -> None:
        """The work queued since the last mark belongs to ``step``; a step may come several times."""
        self._steps.append(step)
        self._record()

    def milliseconds(self) -> dict[str, float]:
        """GPU time of each step of the batch, once the stream was waited for."""
        spent: dict[str, float] = {}
        for index, step in enumerate(self._steps):
            between = self._events[index + 1].milliseconds_since(self._events[index])
            spent[step] = spent.get(step, 0.0) + between
        return spent

    def _record(self) -> None:
        """Record the next event; events are used again by the next batch."""
        number = len(self._steps)
        if number == len(self._events):
            self._events.append(self._stream.event())
        self._stream.record(self._events[number])
