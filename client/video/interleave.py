"""Results of many streams as they come, in one loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from onestream.client.errors import OnestreamError
from onestream.client.video.results import FrameResult
from onestream.client.video.stream import Stream

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class StreamItem:
    """A result of one stream of many: exactly one of ``frame`` and ``error`` is set.

    ``index`` counts the streams from 0 in the order given. An error is the stream's last item.
    """

    index: int
    stream: Stream
    frame: FrameResult | None = None
    error: OnestreamError | None = None

    def __post_init__(self) -> None:
        if (self.frame is None) == (self.error is None):
            raise ValueError("a StreamItem holds either a frame or an error, exactly one of them")

    def unwrap(self) -> FrameResult:
        """The frame's result, or the error raised."""
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return self.frame


def interleave(streams: Iterable[Stream]) -> Generator[StreamItem, None, None]:
    """The results of all streams as they come, each stream's in its order, one of each in turn where many wait.

    All are opened at once. A stream that fails gives an item with its error and the others go on. When the iteration
    ends, early or not, all streams are closed. With ``asyncio``, iterate each stream in a task of its own instead.
    """
    running = dict(enumerate(streams))
    changed = threading.Event()
    with ExitStack() as stack:
        for stream in running.values():
            stack.callback(stream.close)
        for stream in running.values():
            stack.enter_context(stream.listening(changed.set))
        since_s = dict.fromkeys(running, time.monotonic())
        while running:
            changed.clear()
            came = False
            for index, stream in list(running.items()):
                frame = stream.poll()
                if frame is not None:
                    came = True
                    gave_s = time.monotonic()
                    yield StreamItem(index, stream, frame=frame)
                    _without_caller(running, since_s, time.monotonic() - gave_s)
                    continue
                try:
                    stream.check(since_s[index])
                except OnestreamError as error:
                    del running[index]
                    yield StreamItem(index, stream, error=error)
                    continue
                if stream.finished:
                    del running[index]
            if running and not came:
                changed.wait(_LOOK_S)


def _without_caller(streams: Mapping[int, Stream], since_s: dict[int, float], took_s: float) -> None:
    """The time that the caller took over a result is no silence of any server's, where it is long."""
    if took_s < _LOOK_S:
        return
    now_s = time.monotonic()
    for index, stream in streams.items():
        since_s[index] = min(now_s, max(since_s[index], stream.silent_since_s()) + took_s)
