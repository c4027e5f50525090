"""A video stream as its user sees it: an iterator of results, also an asynchronous one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType

from onestream.client._transports.base import ConversingTransport
from onestream.client.errors import (
    BadStream,
    ModelNotFound,
    OnestreamError,
    TimedOut,
    TruncatedInput,
    UnexpectedResponse,
    UnreadableInput,
)
from onestream.client.video import aio
from onestream.client.video.reconnect import Reconnect
from onestream.client.video.results import (
    FrameResult,
    Gap,
    StreamColor,
    Totals,
    encoded_in,
    result_of,
)
from onestream.client.video.session import Received, Session
from onestream.client.video.sound import Sound
from onestream.client.video.sources import Feed, SoundingFeed, Source
from onestream.client.video.timeline import Timeline
from onestream.wire.video import Mode, Open, Packet

_LOOK_S = 0.5
_CREDIT_STEP = 8
"""Where it cannot go with packets, credit goes out for so many results at once, or sooner after a second."""
_DRAIN_S = 5.0
_JOIN_S = 2.0


class Stream:
    """Results of the frames of one source, in the order of display, while it is still running.

    Use it as a context manager, which ends it; then iterate. Both work with ``async`` as well. Nothing is read before
    it is entered, opened or iterated. One thread, or one task, may iterate; everything else may be asked by any.

    After the last result the iteration ends, or raises what ended the stream: ``UnreadableInput`` for the source, as
    ``TruncatedInput`` where a file was cut short, ``BadStream`` where the server refused or ended it, or another error
    of ``onestream.client.errors``.
    """

    def __init__(
        self,
        transport: ConversingTransport,
        source: Source,
        *,
        pipeline: str,
        mode: Mode,
        results: int,
        timeout_s: float,
        reconnect: Reconnect,
        tap: Callable[[Packet], None] | None = None,
        sound: Sound | None = None,
        parameters: Mapping[str, float] | None = None,
    ) -> None:
        """As ``Client.stream``, with every option given."""
        self._transport, self._source, self._pipeline = transport, source, pipeline
        self._mode, self._window, self._timeout_s = mode, results, timeout_s
        self._reconnect, self._tap, self._sound = reconnect, tap, sound
        self._parameters = dict(parameters or {})
        self._results: deque[FrameResult] = deque()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._driver: threading.Thread | None = None
        self._session: Session | None = None
        self._feed: Feed | None = None
        self._format: Open | None = None
        self._stop = threading.Event()
        self._was_open = self._over = False
        self._failure: OnestreamError | None = None
        self._ended_reason: str | None = None
        self._before = Totals()
        self._color: StreamColor | None = None
        self._timeline = Timeline()

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def _start(self) -> None:
        with self._changed:
            if self._driver is None and not self._over:
                self._driver = threading.Thread(target=self._drive, name="onestream-stream-source", daemon=True)
                self._driver.start()

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

    @property
    def _model(self) -> str:
        return f"{self._pipeline}_video"

    # ---- the source's thread ---------------------------------------------------------------------------------------

    def _drive(self) -> None:
        try:
            failure = self._connect_until_done()
        except Exception as error:  # whatever failed here, the caller shall not wait for ever
            failure = OnestreamError(f"the stream failed: {type(error).__name__}: {error}")
        with self._changed:
            self._end("done" if failure is None else str(failure), failure)

    def _connect_until_done(self) -> OnestreamError | None:
        attempt = 0
        while True:
            before = self._timeline.next_index
            failure = self._connect_once()
            if failure is None or self._stop.is_set() or not self._was_open:
                return failure
            attempt = attempt + 1 if self._timeline.next_index == before else 0
            delay_s = self._reconnect.delay_s(failure, attempt)
            if delay_s is None or self._stop.wait(delay_s):
                return failure

    def _connect_once(self) -> OnestreamError | None:
        """Read the source to its end or until something fails; what failed."""
        failure: OnestreamError | None = None
        session: Session | None = None
        feed: Feed | None = None
        try:
            feed = _connect(self._source)
            with self._changed:
                self._feed = feed
            if self._stop.is_set():
                return None
            if self._sound is not None and isinstance(feed, SoundingFeed):
                feed.copy_sound(self._sound)
            session = self._begin(feed.format)
            failure = self._pump(feed, session)
        except OnestreamError as error:
            failure = error
        finally:
            if session is not None:
                session.leave()
                self._retire(session, failure)
            if feed is not None:
                feed.close()
        return failure

    def _without_streams(self, failure: ModelNotFound, *, left_s: float) -> ModelNotFound:
        """The same failure, of a pipeline that is served, but has no part for streams; asked within ``left_s``."""
        if left_s <= 0:
            return failure
        try:
            is_served = self._transport.is_ready(self._pipeline, timeout_s=left_s)
        except OnestreamError:
            return failure
        if not is_served:
            return failure
        other = self._pipeline.removesuffix("_fused")
        hint = "" if other == self._pipeline else f", unless {other!r} is meant, which takes those of both forms"
        return ModelNotFound(
            f"pipeline {self._pipeline!r} is served, but takes no streams: its file has no section 'video'{hint}",
            status=failure.status,
        )

    def _begin(self, format: Open) -> Session:
        # At once: what the caller takes meanwhile must become credit of the new connection.
        with self._changed:
            results = max(1, self._window - len(self._results))
            opening = replace(format, mode=self._mode, results=results, parameters=self._parameters)
            self._format = opening
            session = Session(
                self._transport,
                self._model,
                opening,
                credit_step=max(1, min(_CREDIT_STEP, self._window // 2)),
                on_opened=self._opened,
                on_counts=self._wake,
                on_results=self._take,
                on_over=self._session_over,
                tap=self._tap,
            )
            self._session = session
        if self._stop.is_set():
            session.cancel()
        return session

    def _pump(self, feed: Feed, session: Session) -> OnestreamError | None:
        lost: OnestreamError | None = None
        try:
            for packet in feed.packets():
                if not session.outbox.put(packet):
                    break
            else:
                if feed.endless and not self._stop.is_set():
                    lost = UnreadableInput("the source ended the connection", name=self.name)
        except OnestreamError as error:
            lost = error
        except Exception as error:  # an iterable of the caller's own may raise anything
            lost = UnreadableInput(f"cannot be read on: {type(error).__name__}: {error}", name=self.name)
        complete = not session.over
        session.outbox.finish()
        # What was sent is still answered; a file's caller may take its time, a camera is to be seen again soon.
        reconnecting = lost is not None and self._reconnect.attempts > 0
        if not session.wait(_DRAIN_S if reconnecting else None):
            return lost
        if session.failure is not None:
            return session.failure
        if not complete and not self._stop.is_set():
            return BadStream("ended", f"the server ended the stream before its end: {session.ended_reason}")
        return lost

    def _retire(self, session: Session, failure: OnestreamError | None) -> None:
        with self._changed:
            self._before, self._session = self._before + session.totals, None
            self._color = session.color or self._color
            if self._was_open and failure is not None:
                self._timeline.lost(str(failure), decoded=session.totals.decoded)

    def _end(self, reason: str, failure: OnestreamError | None) -> None:
        if not self._over:
            self._over, self._ended_reason, self._failure = True, reason, failure
        self._wake()

    # ---- the receiving thread --------------------------------------------------------------------------------------

    def _opened(self) -> None:
        with self._changed:
            self._was_open = True
            self._timeline.connected()
        self._wake()

    def _take(self, received: list[Received]) -> None:
        with self._changed:
            if self._stop.is_set():
                return
            for one in received:
                # After a reconnection one result is asked for although the window may be full.
                if len(self._results) > self._window:
                    raise UnexpectedResponse(f"more than {self._window} results came, which is more than was asked for")
                self._results.append(self._placed(one))
        self._wake()

    def _placed(self, received: Received) -> FrameResult:
        fields, tensors = received.fields, received.tensors
        index, pts_seconds, after_gap = self._timeline.place(int(fields["index"]), fields.get("pts_seconds"))
        return FrameResult(
            frame_index=index,
            pts=fields.get("pts"),
            pts_seconds=pts_seconds,
            latency_ms=received.latency_ms,
            server_latency_ms=float(fields.get("latency_ms", 0.0)),
            tensors=tensors,
            result=result_of(received.kind, self._model, tensors, received.latency_ms),
            after_gap=after_gap,
            video=encoded_in(tensors, fields),
        )

    def _session_over(self, session: Session) -> None:
        """The source may be waiting for its next packet, so what failed is told here."""
        failure = session.failure
        if isinstance(failure, ModelNotFound):
            left_s = session.began_s + self._timeout_s - time.monotonic()
            failure = self._without_streams(failure, left_s=left_s)
        with self._changed:
            if self._feed is not None:
                self._feed.stop()
            if failure is not None and (not self._was_open or self._reconnect.delay_s(failure, 0) is None):
                self._end(str(failure), failure)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            for listener in self._listeners:
                listener()


def _connect(source: Source) -> Feed:
    try:
        return source.connect()
    except OnestreamError:
        raise
    except Exception as error:  # an iterable of the caller's own may raise anything
        raise UnreadableInput(f"cannot be read: {type(error).__name__}: {error}", name=source.name) from error
