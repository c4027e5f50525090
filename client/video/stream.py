"""A video stream as its user sees it: an iterator of results, also an asynchronous one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onestream.client.errors import OnestreamError, TimedOut, TruncatedInput
from onestream.client.video import aio
from onestream.client.video.driver import Driver
from onestream.client.video.results import FrameResult, Gap, StreamColor, Totals
from onestream.wire.video import Open

_LOOK_S = 0.5
_JOIN_S = 2.0


class Stream(Driver):
    """Results of the frames of one source, in the order of display, while it is still running.

    Use it as a context manager, which ends it; then iterate. Both work with ``async`` as well. Nothing is read before
    it is entered, opened or iterated. One thread, or one task, may iterate; everything else may be asked by any.

    After the last result the iteration ends, or raises what ended the stream: ``UnreadableInput`` for the source, as
    ``TruncatedInput`` where a file was cut short, ``BadStream`` where the server refused or ended it, or another error
    of ``onestream.client.errors``.
    """

    # ---- what is known ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The source, for people; without user and password."""
        return self._source.name

    @property
    def format(self) -> Open | None:
        """The source's format (codec, size, time base, …); None before it was opened."""
        return self._format

    @property
    def color(self) -> StreamColor | None:
        """How the server makes RGB of the newest frame, and who says so; None before the stream is open."""
        with self._changed:
            return self._color if self._session is None else self._session.color or self._color

    @property
    def totals(self) -> Totals:
        """Frames so far, of all connections."""
        with self._changed:
            return self._before if self._session is None else self._before + self._session.totals

    @property
    def decoded(self) -> int:
        """Frames that the server decoded so far."""
        return self.totals.decoded

    @property
    def dropped(self) -> int:
        """Frames without result because the stream may not wait (mode *drop_oldest*), here or in the server."""
        return self.totals.dropped

    @property
    def concealed(self) -> int:
        """Frames or packets so far that were damaged; the decoder went on."""
        return self.totals.concealed

    @property
    def unshown(self) -> int:
        """Packets so far before the first that could be shown, as where a stream is joined between key frames."""
        return self.totals.unshown

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Times without connection so far."""
        return self._timeline.gaps

    @property
    def ended_reason(self) -> str | None:
        """Why the stream ended: *done* after the last frame, *closed*, or the error's text; None while it runs."""
        return self._ended_reason

    @property
    def error(self) -> OnestreamError | None:
        """The error that ended the stream, if one did; it is raised after the last result."""
        return self._failure

    @property
    def truncated(self) -> bool:
        """Whether the source was a file that was cut short; all that is there has its results."""
        return isinstance(self._failure, TruncatedInput)

    @property
    def finished(self) -> bool:
        """Whether no further result can come."""
        with self._changed:
            return self._over and not self._results

    # ---- use -------------------------------------------------------------------------------------------------------

    def open(self) -> Stream:
        """Connect to the source and the server, and wait until both agreed. Raises what prevents it."""
        self._start()
        with self._changed:
            began_s = time.monotonic()
            while not self._was_open and not self._over:
                self._changed.wait(min(_LOOK_S, self._timeout_s))
                self._check_silence(began_s)
            if not self._was_open and self._failure is not None:
                raise self._failure
        return self

    def poll(self) -> FrameResult | None:
        """The next result if it is there; None if not, whether one will come or not (``finished``)."""
        self._start()
        with self._changed:
            return self._pop()

    def close(self) -> None:
        """End the stream now, and let go of source and server. May be called twice."""
        self._stop.set()
        with self._changed:
            self._results.clear()
            self._end("closed", None)
            session, feed = self._session, self._feed
        if feed is not None:
            feed.stop()
        if session is not None:
            session.cancel()
        self._wake()
        if self._driver is not None and self._driver is not threading.current_thread():
            # A source that blocks in a read ends within its own time; nothing here depends on it any more.
            self._driver.join(_JOIN_S)

    def __enter__(self) -> Stream:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[FrameResult]:
        return self

    def __next__(self) -> FrameResult:
        self._start()
        began_s = time.monotonic()
        with self._changed:
            while (result := self._pop()) is None:
                if self._over:
                    self._raise_failure()
                    raise StopIteration
                self._changed.wait(min(_LOOK_S, self._timeout_s))
                self._check_silence(began_s)
            return result

    async def __aenter__(self) -> Stream:
        await aio.opened(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await aio.closed(self)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> FrameResult:
        return await aio.next_result(self)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, pipeline={self._pipeline!r}, mode={self._mode!r})"

    # ---- waiting elsewhere: aio and interleave ---------------------------------------------------------------------

    @contextmanager
    def listening(self, wake: Callable[[], None]) -> Iterator[None]:
        """``wake`` is called, by any thread, whenever something may have changed."""
        self._start()
        with self._changed:
            self._listeners.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(wake)

    @property
    def is_open(self) -> bool:
        """Whether source and server agreed at least once."""
        return self._was_open

    def silent_since_s(self) -> float:
        """Since when (of ``time.monotonic``) the server does nothing where it could; now where it is not its turn."""
        session = self._session
        if session is None or session.over or self._results:
            return time.monotonic()
        waits_s = session.outbox.waits_since()
        return time.monotonic() if waits_s is None else max(waits_s, session.heard_s)

    def check(self, began_s: float) -> None:
        """Raise what ended the stream; to be asked by who waits since ``began_s`` (of ``time.monotonic``)."""
        with self._changed:
            self._check_silence(began_s)
            if self._over and not self._results:
                self._raise_failure()

    # ---- the caller's thread ---------------------------------------------------------------------------------------

    def _pop(self) -> FrameResult | None:
        if not self._results:
            return None
        result = self._results.popleft()
        if self._session is not None:
            self._session.outbox.give()
        return result

    def _raise_failure(self) -> None:
        if self._failure is not None and not self._stop.is_set():
            raise self._failure

    def _check_silence(self, began_s: float) -> None:
        """The server is taken for dead where it is its turn and it does nothing: a killed model process is silent."""
        session = self._session
        if session is not None and time.monotonic() - max(self.silent_since_s(), began_s) > self._timeout_s:
            session.fail(TimedOut(f"model {self._model!r} did nothing for {self._timeout_s:.3g} s"))
