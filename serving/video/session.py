"""One video stream in the server: what waits where, which thread may go on, and in which order results leave.

    packets ──► inbox ──► decoder ──► frames ──► network ──► inferred ──► finish ──► client
                bytes                 └────────────── at most ``Bounds.results`` ──────────────┘

``finish`` is there where a result is worked on in the order of display, such as encoded. Four kinds of threads call
the methods: Triton's (``receive``), those that decode, those that infer and those that finish. One lock guards what
they change, and nothing slow is done under it. ``State`` draws how a stream begins and ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from onestream.postprocess.parameters import NO_PARAMETERS, Parameters
from onestream.preprocess.errors import BadImage, BadSample
from onestream.serving.video.bounds import MOST_RESULTS, BadStream, Bounds
from onestream.serving.video.inbox import Inbox
from onestream.serving.video.stream_types import Decoder, Queues, ResponseSink, Slot, State, Tensors, Totals
from onestream.wire.kinds import KIND_PARAMETER
from onestream.wire.plain_text import first_line
from onestream.wire.video import DONE, Close, Credit, Event, Message, Open, Packet, Packets

Finish = Callable[[Any, Tensors], tuple[Tensors, dict[str, Any]]]
"""Makes the tensors that leave from a frame and its results, and the fields that their event has beside the usual."""
Job = Callable[[], None]

_TURN_S = 0.02
"""A stream gives its turn to other streams after so much CPU time of decoding."""

_LEAST_WAITING = 4
"""At least so many frames of a live stream may wait for the network; more where more are decoded together."""

_REPORT_S = 0.2
"""The longest time between two reports of consumed bytes; results report them too."""


class Session:
    """One open stream.

    The session calls ``wake_decoder``, ``wake_network`` and ``wake_finisher`` with itself when a thread of their kind
    may find work here, and ``on_end`` once, at the end. Without ``finish`` results leave as they are. ``in_flight`` is
    how many frames the network may have at once, ``together`` how many packets are decoded, and results sent, at once.
    """

    def __init__(
        self,
        opened: Open,
        decoder: Decoder,
        sink: ResponseSink,
        *,
        bounds: Bounds,
        wake_decoder: Callable[[Session], None],
        wake_network: Callable[[Session], None],
        on_end: Callable[[Session], None],
        in_flight: int = 4,
        together: int = 1,
        finish: Finish | None = None,
        wake_finisher: Callable[[Session], None] = lambda _session: None,
        parameters: Parameters = NO_PARAMETERS,
        kind: str | None = None,
    ) -> None:
        self.parameters = parameters
        """What the stream sets of the pipeline's options."""
        self._opened, self._decoder, self._sink, self._bounds = opened, decoder, sink, bounds
        self._on_end, self._most_in_flight, self._together = on_end, in_flight, together
        self._wake_decoder, self._wake_network = wake_decoder, wake_network
        self._finish, self._wake_finisher = finish, wake_finisher
        self._lock, self._sending = threading.RLock(), threading.Lock()
        self._state, self._queues, self.totals = State.RECEIVING, Queues(), Totals()
        self._inbox = Inbox(opened.mode, bounds, self.totals)
        self._credit, self._untaken = opened.results, 0
        self._received: dict[int, float] = {}
        self._heard_s = self._said_s = time.monotonic()
        self._reported_bytes = 0
        said: dict[str, Any] = {} if kind is None else {KIND_PARAMETER: kind}
        sink.send(self._event("opened", buffer_bytes=bounds.buffer_bytes, results=bounds.results, **said), {})

    @property
    def ended(self) -> bool:
        """Whether the stream has ended."""
        return self._state is State.ENDED

    @property
    def _unshown(self) -> int:
        # Before the first frame nobody knows which packets will never be shown.
        return self._decoder.unshown if self._decoder.decoded or self.ended else 0

    def counts(self) -> dict[str, int]:
        """Totals so far: frames *decoded*, *inferred*, *dropped* and *concealed*, packets *unshown*, *latency_us*."""
        with self._lock:
            return {**self._counts(), "latency_us": round(1000 * self.totals.latency_ms)}

    def _counts(self) -> dict[str, int]:
        return {
            "decoded": self._decoder.decoded,
            "inferred": self.totals.inferred,
            "dropped": self.totals.dropped,
            "concealed": self._decoder.concealed,
            "unshown": self._unshown,
        }

    # ---- Triton's threads ------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Take a message. It never waits and never raises: a wrong message ends the stream."""
        try:
            self._receive(message)
        except BadStream as error:
            self.end(error)

    def _receive(self, message: Message) -> None:
        with self._lock:
            if self.ended:
                return
            if isinstance(message, Open):
                raise BadStream("bad_message", "the stream is open already")
            if isinstance(message, Credit | Packets):
                self._give_credit(message.results)
            if isinstance(message, Packets | Close) and self._state is not State.RECEIVING:
                raise BadStream("bad_message", "a packet came after the end")
            if isinstance(message, Close):
                self._state = self._state.to(State.CLOSING)
            elif isinstance(message, Packets) and self._inbox.put(message.packets):
                self._heard_s = time.monotonic()
        self._deliver()
        self._wake()
        self._end_if_done()

    def _give_credit(self, results: int) -> None:
        self._credit += results
        if self._credit > MOST_RESULTS:
            raise BadStream("flow", f"credit for {self._credit} results; at most {MOST_RESULTS} may be given")
        # Credit beyond the results that were sent does not show that somebody takes them.
        taken = min(results, self._untaken)
        self._untaken -= taken
        if taken:
            self._heard_s = time.monotonic()

    def tick(self) -> None:
        """End the stream if its client is gone or was idle for too long; the server calls this now and then."""
        with self._sending:
            # After the last response Triton forgets the sender.
            if self.ended:
                return
            gone = self._sink.is_gone()
        if gone:
            self.end(None)
            return
        self._report()
        now = time.monotonic()
        with self._lock:
            queues = self._queues
            waiting = queues.frames or queues.in_flight or queues.leaving
            # Packets that are being decoded are counted in the bytes only.
            working = bool(self._inbox.held_bytes and self._room() > 0) or bool(waiting)
            quiet_s = now - max(self._heard_s, self._said_s)
        if not working and quiet_s > self._bounds.idle_s:
            what = "took no result" if queues.inferred else "sent nothing"
            self.end(BadStream("idle", f"the client {what} for {self._bounds.idle_s:g} s"))

    # ---- threads that decode ---------------------------------------------------------------------------------------

    def next_packets(self) -> Job | None:
        """A job that decodes packets, or takes the decoder's last frames; None where there is nothing to decode now."""
        with self._lock:
            room = self._room()
            if room < 1:
                return None
            # After CLOSING the inbox is empty.
            self._inbox.drop_late()
            if self._inbox:
                turn = self._turn(min(room, self._together))
                return lambda: self._decode(turn)
            if self._state is State.CLOSING:
                self._state = self._state.to(State.FLUSHING)
                return lambda: self._decode([(None, time.monotonic())])
            return None

    def _turn(self, most: int) -> Iterator[tuple[Packet, float]]:
        """Take the packets of one turn one by one, each with the time when it was received."""
        began_s, size = time.thread_time(), 0
        for _ in range(most):
            with self._lock:
                if not self._inbox or (size and time.thread_time() - began_s > _TURN_S):
                    return
                # The client must hear of consumed bytes before it has to wait.
                if size and size + self._inbox.next_bytes > self._bounds.buffer_bytes // 4:
                    return
                packet, received_s = self._inbox.take()
                size += len(packet.data)
            yield packet, received_s

    def _room(self) -> int:
        """How many more frames the server may hold."""
        # A stream that drops its oldest frames makes room itself.
        return self._bounds.results - (0 if self._opened.mode == "drop_oldest" else self._queues.held)

    def _decode(self, packets: Iterable[tuple[Packet | None, float]]) -> None:
        found: list[Slot] = []
        size = 0
        try:
            for packet, received_s in packets:
                found += self._decoded(packet, received_s)
                size += len(packet.data) if packet else 0
        except (BadSample, BadImage) as error:
            self.end(BadStream("failed", error.reason if isinstance(error, BadImage) else str(error)))
            return
        except Exception as error:  # an error of a decoder must end this stream and no thread
            self.end(
                error if isinstance(error, BadStream) else BadStream("failed", f"decoding failed: {first_line(error)}")
            )
            return
        with self._lock:
            if self.ended:
                return
            if self._state is State.FLUSHING:
                # One job of a stream is done at a time, so this one took the last frames.
                self._state = self._state.to(State.DRAINING)
            self._inbox.consumed(size)
            self._queues.frames.extend(found)
            if self._opened.mode == "drop_oldest":
                self._drop()
        self._wake()
        self._report()
        self._end_if_done()

    def _decoded(self, packet: Packet | None, received_s: float) -> Iterator[Slot]:
        if packet is not None and packet.pts is not None:
            self._received[packet.pts] = received_s
        for frame in self._decoder.feed(packet):
            pts = frame.source_pts
            yield Slot(frame, received_s if pts is None else self._received.pop(pts, received_s))
        # Packets whose frames are never shown would stay for ever.
        while len(self._received) > 256:
            self._received.pop(next(iter(self._received)))

    def _drop(self) -> None:
        """Drop what is more than may be held: the oldest results first, then the oldest frames."""
        queues = self._queues
        while queues.held > self._bounds.results and (queues.inferred or queues.frames):
            (queues.inferred or queues.frames).popleft()
            self.totals.dropped += 1
        # A frame that waits behind many others is old when the network takes it.
        while len(queues.frames) > max(_LEAST_WAITING, self._together):
            queues.frames.popleft()
            self.totals.dropped += 1

    # ---- threads that infer ----------------------------------------------------------------------------------------

    def next_frames(self, most: int) -> list[Slot]:
        """At most ``most`` frames for the network; the caller must call ``take_results`` or ``fail`` with them."""
        with self._lock:
            frames, in_flight = self._queues.frames, self._queues.in_flight
            count = 0 if self.ended else min(most, len(frames), self._most_in_flight - len(in_flight))
            slots = [frames.popleft() for _ in range(count)]
            in_flight.extend(slots)
            return slots

    def fail(self, error: Exception) -> None:
        """End the stream because the network failed."""
        self.end(BadStream("failed", f"the network failed: {first_line(error)}"))

    def take_results(self, results: list[tuple[Slot, Tensors]]) -> None:
        """Take the pipeline's outputs for frames."""
        with self._lock:
            for slot, tensors in results:
                slot.tensors = tensors
            self.totals.inferred += len(results)
            queues = self._queues
            while queues.in_flight and queues.in_flight[0].tensors is not None:
                queues.inferred.append(queues.in_flight.popleft())
        self._deliver()
        self._wake()
        self._end_if_done()

    # ---- threads that finish ---------------------------------------------------------------------------------------

    def next_result(self) -> Job | None:
        """A job that finishes and sends one result, or None. Only one thread at a time may ask for it and do it."""
        leaving = self._next_leaving(1)
        return (lambda: self._finish_and_send(leaving[0])) if leaving else None

    def _finish_and_send(self, slot: Slot) -> None:
        assert self._finish is not None
        assert slot.tensors is not None
        try:
            tensors, fields = self._finish(slot.frame, slot.tensors)
        except Exception as error:  # an error of a library must end this stream and no thread
            self.end(BadStream("failed", f"frame {slot.frame.index} cannot be finished: {first_line(error)}"))
            return
        slot.tensors = tensors
        with self._sending:
            self._send([slot], fields)
        self._wake()
        self._end_if_done()

    # ---- the way out -----------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Send results as far as the client's credit goes. One thread at a time does it, which keeps their order."""
        if self._finish is not None:
            if self._queues.inferred and self._credit:
                self._wake_finisher(self)
            return
        with self._sending:
            while leaving := self._next_leaving(self._together):
                for _, alike in groupby(leaving, lambda slot: slot.kind):
                    self._send(list(alike), {})

    def _next_leaving(self, most: int) -> list[Slot]:
        with self._lock:
            inferred = self._queues.inferred
            count = 0 if self.ended else min(most, len(inferred), self._credit)
            self._credit -= count
            self._untaken += count
            self._queues.leaving += count
            return [inferred.popleft() for _ in range(count)]

    def _send(self, slots: list[Slot], fields: dict[str, Any]) -> None:
        """Send results of one kind; ``fields`` are added to what the event says of each."""
        now_s = time.monotonic()
        with self._lock:
            if self.ended:
                return
            self.totals.latency_ms += sum(slot.latency_ms(now_s) for slot in slots)
            self._queues.leaving -= len(slots)
        frames = [slot.fields(now_s) | fields for slot in slots]
        results = [slot.tensors or {} for slot in slots]
        stacked = {name: np.stack([result[name] for result in results]) for name in results[0]}
        self._sink.send(self._event("results", frames=frames), stacked)

    def _report(self) -> None:
        """Report consumed bytes where no result reports them soon enough."""
        with self._sending:
            with self._lock:
                unsaid = self.totals.consumed_bytes - self._reported_bytes
                late = time.monotonic() - self._said_s > _REPORT_S
                if self.ended or not unsaid or (not late and unsaid < self._bounds.buffer_bytes // 4):
                    return
            self._sink.send(self._event("consumed"), {})

    def _wake(self) -> None:
        """Wake only threads that have work here: waking one for nothing costs as much as handling a frame."""
        with self._lock:
            queues = self._queues
            decodes = (self._inbox or self._state is State.CLOSING) and self._room() > 0
            infers = queues.frames and len(queues.in_flight) < self._most_in_flight
        if decodes:
            self._wake_decoder(self)
        if infers:
            self._wake_network(self)

    def _event(self, kind: Any, /, *, frames: Sequence[dict[str, Any]] = (), **fields: object) -> Event:
        with self._lock:
            self._said_s = time.monotonic()
            self._reported_bytes = self.totals.consumed_bytes
            colors = self._decoder.colors
            return Event(
                type=kind,
                consumed_bytes=self.totals.consumed_bytes,
                **self._counts(),
                color=None if colors is None else colors.to_dict(),
                fields=fields,
                frames=frames,
            )

    def _end_if_done(self) -> None:
        with self._lock:
            done = self._state is State.DRAINING and self._queues.held == 0
        if done:
            self.end(None, done=True)

    def end(self, error: BadStream | None, *, done: bool = False) -> None:
        """End the stream once: it is done, or has an error, or (neither) its client is gone. Later calls do nothing."""
        with self._sending, self._lock:
            if self.ended:
                return
            event = None
            if done:
                event = self._event("ended", code=DONE, reason="done")
            elif error is not None:
                event = self._event("ended", code=error.code, reason=error.reason)
            self._state = self._state.to(State.ENDED)
            self._queues = Queues()
            self._inbox.clear()
        try:
            with self._sending:
                self._sink.end(event, error)
        finally:
            self._on_end(self)
