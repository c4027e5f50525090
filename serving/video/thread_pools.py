"""Threads that serve many streams in turn: each takes a piece of one stream's work, or of several, and goes on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Stream = TypeVar("Stream")
Item = TypeVar("Item")
Job = Callable[[], None]


class _Threads(ABC, Generic[Stream]):
    """Threads, and the streams that wait for one of them: each stands in the line once."""

    def __init__(self, name: str, count: int, surprised: Callable[[Exception], None]) -> None:
        self._surprised = surprised
        self._line: deque[Stream] = deque()
        self._in_line: set[int] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]

    def _start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self, stream: Stream) -> None:
        """There may be work for a stream."""
        with self._changed:
            if self._put(stream):
                self._changed.notify()

    def close(self) -> None:
        """Finish what is being done, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _put(self, stream: Stream) -> bool:
        """Put a stream in the line; whether it was not there yet."""
        if id(stream) in self._in_line:
            return False
        self._in_line.add(id(stream))
        self._line.append(stream)
        return True

    def _first(self) -> Stream:
        stream = self._line.popleft()
        self._in_line.discard(id(stream))
        return stream

    @abstractmethod
    def _run(self) -> None:
        """The loop of each thread."""


class RoundRobinPool(_Threads[Stream]):
    """``count`` threads over any number of streams.

    A stream that may have work is handed in by ``wake``; again and again is fine. A thread then asks ``take(stream)``
    for one piece, None where there is none, and does it; then the stream goes to the end of the line, so that no two
    pieces of one stream are done at once. Neither ``take`` nor the pieces should raise; ``surprised`` is told where one
    does.
    """

    def __init__(
        self,
        name: str,
        count: int,
        take: Callable[[Stream], Job | None],
        *,
        surprised: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        super().__init__(name, count, surprised)
        self._take = take
        self._busy: set[int] = set()
        self._woken_while_busy: set[int] = set()
        self._start()

    def _put(self, stream: Stream) -> bool:
        if id(stream) in self._busy:
            self._woken_while_busy.add(id(stream))
            return False
        return super()._put(stream)

    def _run(self) -> None:
        while (stream := self._next()) is not None:
            more = False
            try:
                more = self._turn(stream)
            except Exception as error:  # a thread that ends would be missing for every stream
                self._surprised(error)
            finally:
                self._finish(stream, more=more)
            # An idle thread must not keep an ended stream and its decoder.
            del stream

    def _turn(self, stream: Stream) -> bool:
        job = self._take(stream)
        if job is None:
            return False
        job()
        return True

    def _next(self) -> Stream | None:
        with self._changed:
            while not self._line and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            stream = self._first()
            self._busy.add(id(stream))
            return stream

    def _finish(self, stream: Stream, *, more: bool) -> None:
        with self._changed:
            self._busy.discard(id(stream))
            if more or id(stream) in self._woken_while_busy:
                # No other thread is woken: this one looks at the line next.
                self._put(stream)
            self._woken_while_busy.discard(id(stream))


class BatchingPool(_Threads[Stream], Generic[Stream, Item]):
    """``count`` threads that do pieces of many streams' work together, such as the frames of one batch.

    A stream that may have work is handed in by ``wake``. A thread takes what ``take(stream, most)`` gives, at most so
    many pieces and fewer only where there are no more, stream by stream, and calls ``work`` with all of it: the more
    threads are busy, the more streams it asks, up to ``most`` pieces in all. Neither should raise; ``surprised`` is
    told where one does.
    """

    def __init__(
        self,
        name: str,
        count: int,
        take: Callable[[Stream, int], Sequence[Item]],
        work: Callable[[list[tuple[Stream, Item]]], None],
        *,
        most: int,
        surprised: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        super().__init__(name, count, surprised)
        self._take, self._work, self._most = take, work, most
        self._idle = 0
        self._start()

    def _run(self) -> None:
        while (share := self._wait()) is not None:
            pieces: list[tuple[Stream, Item]] = []
            try:
                pieces = self._gather(share)
                if pieces:
                    self._work(pieces)
            except Exception as error:  # a thread that ends would be missing for every stream
                self._surprised(error)
            # An idle thread must not keep an ended stream and its decoder.
            del pieces

    def _wait(self) -> int | None:
        """The number of streams to ask: an equal share of the line for each free thread."""
        with self._changed:
            self._idle += 1
            while not self._line and not self._closed:
                self._changed.wait()
            share = -(-len(self._line) // self._idle)
            self._idle -= 1
            return None if self._closed else max(share, 1)

    def _gather(self, share: int) -> list[tuple[Stream, Item]]:
        pieces: list[tuple[Stream, Item]] = []
        while share > 0 and len(pieces) < self._most and (stream := self._next()) is not None:
            # A stream that has many leaves room for those behind it.
            room = max(1, (self._most - len(pieces)) // share)
            found = self._take(stream, room)
            pieces += [(stream, piece) for piece in found]
            share -= bool(found)
            if len(found) == room:
                # It may have more.
                self.wake(stream)
        return pieces

    def _next(self) -> Stream | None:
        with self._changed:
            return self._first() if self._line else None
