"""What runs in a stream's threads: source and server are connected, again where a connection is lost, and fed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from onestream.client._transports.base import ConversingTransport
from onestream.client.errors import BadStream, ModelNotFound, OnestreamError, UnexpectedResponse, UnreadableInput
from onestream.client.video.reconnect import Reconnect
from onestream.client.video.results import FrameResult, Gap, StreamColor, Totals, encoded_in, result_of
from onestream.client.video.session import Received, Session
from onestream.client.video.sound import Sound
from onestream.client.video.sources import Feed, SoundingFeed, Source
from onestream.wire.video import Mode, Open, Packet

_CREDIT_STEP = 8
"""Where it cannot go with packets, credit goes out for so many results at once, or sooner after a second."""
_DRAIN_S = 5.0


class Driver:
    """The threads of a ``Stream``, and what they know of it; ``_changed`` guards it."""

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

    def _start(self) -> None:
        with self._changed:
            if self._driver is None and not self._over:
                self._driver = threading.Thread(target=self._drive, name="onestream-stream-source", daemon=True)
                self._driver.start()

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
            f"pipeline {self._pipeline!r} is served, but takes no streams: its file has no section 'video'{hint}. "
            f"Add the line `video: {{}}` to its file, build it, and `onestream models load {other}`",
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
                    lost = UnreadableInput("the source ended the connection", name=self._source.name)
        except OnestreamError as error:
            lost = error
        except Exception as error:  # an iterable of the caller's own may raise anything
            lost = UnreadableInput(f"cannot be read on: {type(error).__name__}: {error}", name=self._source.name)
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
        """Report a failure here: the source may be waiting for its next packet."""
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


class Timeline:
    """Maps frames of the present connection to their place in the whole stream. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_index = 0
        self.next_index = 0
        self._offset_s: float | None = 0.0
        self._last_s = 0.0
        self._lost: tuple[float, str] | None = None
        self._gap_s = 0.0
        self.gaps: tuple[Gap, ...] = ()
        self._gap_unsaid = False

    def lost(self, reason: str, *, decoded: int) -> None:
        """The connection ended, in which so many frames were decoded."""
        self._first_index = self.next_index = max(self.next_index, self._first_index + decoded)
        # Attempts that fail make the gap longer; why it began stays.
        if self._lost is None:
            self._lost = (self._clock(), reason)

    def connected(self) -> None:
        """Source and server agreed; after a loss that is the end of a gap."""
        if self._lost is not None:
            began_s, reason = self._lost
            self._lost, self._gap_s = None, self._clock() - began_s
            self.gaps = (*self.gaps, Gap(self._first_index, self._gap_s, reason))
            self._offset_s, self._gap_unsaid = None, True

    def place(self, index: int, pts_seconds: float | None) -> tuple[int, float | None, bool]:
        """Number and seconds of a connection's frame in the whole stream, and whether it is the first after a gap."""
        after_gap, self._gap_unsaid = self._gap_unsaid, False
        number = self._first_index + index
        self.next_index = max(self.next_index, number + 1)
        if pts_seconds is None:
            return number, None, after_gap
        if self._offset_s is None:
            # The new connection counts its seconds anew, so this machine's clock tells how long the gap was.
            self._offset_s = self._last_s + self._gap_s - pts_seconds
        self._last_s = pts_seconds + self._offset_s
        return number, self._last_s, after_gap
