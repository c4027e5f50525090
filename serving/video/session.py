"""One video stream in the server: what waits where, who may go on, and in which order results leave.

    packets ──► inbox ──► decoder ──► frames ──► network ──► inferred ──► finish ──► client
                bytes                 └────────────── at most ``Bounds.results`` ──────────────┘

``finish`` is there where a result is worked on in the order of display, such as encoded. Methods are called by up to
four kinds of threads: Triton's (``receive``), those that decode, those that infer and those that finish. State is
changed under one lock, and nothing slow is done under it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from onestream.preprocess.errors import BadImage, BadSample
from onestream.serving.video.bounds import MOST_RESULTS, BadStream, Bounds, Rate
from onestream.serving.video.stream_types import Decoder, Queues, ResponseSink, Slot, Tensors, Totals
from onestream.wire.video import DONE, Close, Credit, Event, Message, Open, Packet, Packets

Finish = Callable[[Any, Tensors], tuple[Tensors, dict[str, Any]]]
"""From a frame and its results to the tensors that leave, and what their event says of it beside the usual fields."""
Job = Callable[[], None]

_LEAST_PACKETS, _BYTES_A_PACKET = 1000, 64
"""How many packets may wait: at least so many, and otherwise one for so many bytes of the buffer."""

_LATE_S = 1.0
"""In mode *drop_oldest*, how long a packet may wait for its turn before its group of pictures is dropped."""

_TURN_S = 0.02
"""After so much CPU time no further packet of a stream is decoded before other streams had their turn."""

_LEAST_WAITING = 4
"""So many frames of a live stream may wait for the network, or as many as are decoded together."""

_REPORT_S = 0.2
"""Consumed bytes are reported at least so often while no result does it."""


class Session:
    """One open stream.

    ``wake_decoder``, ``wake_network`` and ``wake_finisher`` are called with the session when a thread of their kind may
    find work here, ``on_end`` once, at the end. Without ``finish`` results leave as they are; nobody is woken for it.
    ``together`` is how many packets are decoded, and results sent, at once where so many wait.
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
    ) -> None:
        self._opened, self._decoder, self._sink, self._bounds = opened, decoder, sink, bounds
        self._on_end, self._most_in_flight, self._together = on_end, in_flight, together
        self._wake_decoder, self._wake_network = wake_decoder, wake_network
        self._finish, self._wake_finisher = finish, wake_finisher
        self._lock, self._sending = threading.RLock(), threading.Lock()
        self._queues, self.totals = Queues(), Totals()
        self._credit, self._untaken = opened.results, 0
        self._closing = self._flushing = self._flushed = self._ended = self._skipping = False
        self._received: dict[int, float] = {}
        self._heard_s = self._said_s = time.monotonic()
        self._reported_bytes = 0
        self._rate = Rate(bounds.max_bitrate if opened.mode == "drop_oldest" else None)
        sink.send(self._event("opened", buffer_bytes=bounds.buffer_bytes, results=bounds.results), {})

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self._ended

    @property
    def _unshown(self) -> int:
        # Until the first frame nobody knows which packets will never be shown.
        return self._decoder.unshown if self._decoder.decoded or self._ended else 0

    def counts(self) -> dict[str, int]:
        """Totals so far: frames *decoded*, *inferred*, *dropped* and *concealed*, packets *unshown*, *latency_us*."""
        with self._lock:
            return {
                "decoded": self._decoder.decoded,
                "inferred": self.totals.inferred,
                "dropped": self.totals.dropped,
                "concealed": self._decoder.concealed,
                "unshown": self._unshown,
                "latency_us": round(1000 * self.totals.latency_ms),
            }

    # ---- Triton's threads ------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Take a message. Never waits, never raises: what is wrong with it ends the stream."""
        try:
            self._receive(message)
        except BadStream as error:
            self.end(error)

    def _receive(self, message: Message) -> None:
        with self._lock:
            if self._ended:
                return
            if isinstance(message, Open):
                raise BadStream("bad_message", "the stream is open already")
            if isinstance(message, Credit | Packets):
                self._give_credit(message.results)
            if isinstance(message, Packets | Close) and self._closing:
                raise BadStream("bad_message", "a packet came after the end")
            if isinstance(message, Close):
                self._closing = True
            elif isinstance(message, Packets):
                self._take_in(message)
        self._deliver()
        self._wake()
        self._end_if_done()

    def _give_credit(self, results: int) -> None:
        self._credit += results
        if self._credit > MOST_RESULTS:
            raise BadStream("flow", f"credit for {self._credit} results; at most {MOST_RESULTS} may be given")
        # No other credit says that somebody takes results.
        taken = min(results, self._untaken)
        self._untaken -= taken
        if taken:
            self._heard_s = time.monotonic()

    def _take_in(self, message: Packets) -> None:
        packets = [packet for packet in message.packets if packet.data]
        size = sum(len(packet.data) for packet in packets)
        waiting, most = self._queues.inbox_bytes, self._bounds.buffer_bytes
        largest = max((len(packet.data) for packet in packets), default=0)
        if largest > most:
            raise BadStream("too_large", f"a packet has {largest} bytes; at most {most} are allowed")
        if waiting + size > most:
            raise BadStream("flow", f"{waiting + size} bytes were sent ahead; at most {most} may be")
        if len(self._queues.inbox) + len(packets) > max(_LEAST_PACKETS, most // _BYTES_A_PACKET):
            raise BadStream("flow", f"{len(self._queues.inbox) + len(packets)} packets were sent ahead")
        self._rate.add(size)
        now = time.monotonic()
        if packets:
            self._heard_s = now
        self._queues.inbox_bytes += size
        for packet in packets:
            if self._skipping and not packet.is_key:
                self._let_go(packet)
                continue
            self._skipping = False
            self._queues.inbox.append((packet, now))

    def _drop_late(self) -> None:
        """Where decoding is too slow, go on at a key packet, which leaves the decoder nothing that it cannot decode."""
        inbox = self._queues.inbox
        if self._opened.mode == "drop_oldest" and inbox and time.monotonic() - inbox[0][1] > _LATE_S:
            self._let_go(inbox.popleft()[0])
            while inbox and not inbox[0][0].is_key:
                self._let_go(inbox.popleft()[0])
            self._skipping = not inbox

    def _let_go(self, packet: Packet) -> None:
        self._queues.inbox_bytes -= len(packet.data)
        self.totals.consumed_bytes += len(packet.data)
        self.totals.dropped += 1

    def tick(self) -> None:
        """Called now and then: ends a stream whose client is gone, or of which nothing was heard for too long."""
        with self._sending:
            # After the last word Triton knows the sender no more.
            if self._ended:
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
            # Of packets that are being decoded only the bytes are still there.
            working = bool(queues.inbox_bytes and self._room() > 0) or bool(waiting)
            quiet_s = now - max(self._heard_s, self._said_s)
        if not working and quiet_s > self._bounds.idle_s:
            what = "took no result" if queues.inferred else "sent nothing"
            self.end(BadStream("idle", f"the client {what} for {self._bounds.idle_s:g} s"))

    # ---- threads that decode ---------------------------------------------------------------------------------------

    def next_packets(self) -> Job | None:
        """Packets to decode, or the end of the stream; None where nothing may be decoded now."""
        with self._lock:
            room = self._room()
            if self._ended or self._flushing or room < 1:
                return None
            self._drop_late()
            if self._queues.inbox:
                turn = self._turn(min(room, self._together))
                return lambda: self._decode(turn)
            if self._closing:
                self._flushing = True
                return lambda: self._decode([(None, time.monotonic())])
            return None

    def _turn(self, most: int) -> Iterator[tuple[Packet, float]]:
        """The packets of one turn, each taken when it is asked for."""
        began_s, size = time.thread_time(), 0
        for _ in range(most):
            with self._lock:
                inbox = self._queues.inbox
                if not inbox or (size and time.thread_time() - began_s > _TURN_S):
                    return
                # The client is to hear of consumed bytes before it has to wait.
                if size and size + len(inbox[0][0].data) > self._bounds.buffer_bytes // 4:
                    return
                taken = inbox.popleft()
                size += len(taken[0].data)
            yield taken

    def _room(self) -> int:
        """For how many frames more there is room."""
        # A stream that drops its oldest frames makes room itself.
        return self._bounds.results - (0 if self._opened.mode == "drop_oldest" else self._held())

    def _held(self) -> int:
        queues = self._queues
        return len(queues.frames) + len(queues.in_flight) + len(queues.inferred) + queues.leaving

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
        except Exception as error:  # whatever a decoder raises ends this stream, and no thread
            self.end(
                error if isinstance(error, BadStream) else BadStream("failed", f"decoding failed: {_first(error)}")
            )
            return
        with self._lock:
            # No two pieces of a stream are decoded at once, so this was the last one.
            self._flushed = self._flushing
            self._queues.inbox_bytes -= size
            self.totals.consumed_bytes += size
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
            yield Slot(frame, received_s if frame.pts is None else self._received.pop(frame.pts, received_s))
        # Frames that are never shown would stay for ever.
        while len(self._received) > 256:
            self._received.pop(next(iter(self._received)))

    def _drop(self) -> None:
        """Keep within what may be held: results that wait longest go first, then frames that wait longest."""
        queues = self._queues
        while self._held() > self._bounds.results and (queues.inferred or queues.frames):
            (queues.inferred or queues.frames).popleft()
            self.totals.dropped += 1
        # A frame that waits behind another one for the network is old when its turn comes.
        while len(queues.frames) > max(_LEAST_WAITING, self._together):
            queues.frames.popleft()
            self.totals.dropped += 1

    # ---- threads that infer ----------------------------------------------------------------------------------------

    def next_frames(self, most: int) -> list[Slot]:
        """At most so many frames for the network; ``take_results`` or ``fail`` is to follow."""
        with self._lock:
            frames, in_flight = self._queues.frames, self._queues.in_flight
            count = 0 if self._ended else min(most, len(frames), self._most_in_flight - len(in_flight))
            slots = [frames.popleft() for _ in range(count)]
            in_flight.extend(slots)
            return slots

    def fail(self, error: Exception) -> None:
        """The network failed: the stream ends."""
        self.end(BadStream("failed", f"the network failed: {_first(error)}"))

    def take_results(self, results: list[tuple[Slot, Tensors]]) -> None:
        """The pipeline's outputs for frames."""
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
        """One result to finish and send, or None. Only one thread at a time may ask, and do it."""
        leaving = self._next_leaving(1)
        return (lambda: self._finish_and_send(leaving[0])) if leaving else None

    def _finish_and_send(self, slot: Slot) -> None:
        assert self._finish is not None
        assert slot.tensors is not None
        try:
            tensors, fields = self._finish(slot.frame, slot.tensors)
        except Exception as error:  # whatever a library raises ends this stream, and no thread
            self.end(BadStream("failed", f"frame {slot.frame.index} cannot be finished: {_first(error)}"))
            return
        slot.tensors = tensors
        with self._sending:
            self._send([slot], fields)
        self._wake()
        self._end_if_done()

    # ---- the way out -----------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Send what is inferred, as far as the client's credit goes. One thread at a time keeps the order."""
        if self._finish is not None:
            if self._queues.inferred and self._credit:
                self._wake_finisher(self)
            return
        with self._sending:
            while leaving := self._next_leaving(self._together):
                for _, alike in groupby(leaving, _kind):
                    self._send(list(alike), {})

    def _next_leaving(self, most: int) -> list[Slot]:
        with self._lock:
            inferred = self._queues.inferred
            count = 0 if self._ended else min(most, len(inferred), self._credit)
            self._credit -= count
            self._untaken += count
            self._queues.leaving += count
            return [inferred.popleft() for _ in range(count)]

    def _send(self, slots: list[Slot], fields: dict[str, Any]) -> None:
        """Send results that are alike; ``fields`` go with each beside the usual ones."""
        now = time.monotonic()
        latencies_ms = [1000 * (now - slot.received_s) for slot in slots]
        with self._lock:
            if self._ended:
                return
            self.totals.latency_ms += sum(latencies_ms)
            self._queues.leaving -= len(slots)
        frames = [
            {
                "index": slot.frame.index,
                "pts": slot.frame.pts,
                "pts_seconds": slot.frame.pts_seconds,
                "latency_ms": round(latency_ms, 3),
                **fields,
            }
            for slot, latency_ms in zip(slots, latencies_ms, strict=True)
        ]
        results = [slot.tensors or {} for slot in slots]
        stacked = {name: np.stack([result[name] for result in results]) for name in results[0]}
        self._sink.send(self._event("results", frames=frames), stacked)

    def _report(self) -> None:
        """Tell what was consumed where no result does it soon enough."""
        with self._sending:
            with self._lock:
                unsaid = self.totals.consumed_bytes - self._reported_bytes
                late = time.monotonic() - self._said_s > _REPORT_S
                if self._ended or not unsaid or (not late and unsaid < self._bounds.buffer_bytes // 4):
                    return
            self._sink.send(self._event("consumed"), {})

    def _wake(self) -> None:
        """Wake threads that have something to do here: waking one for nothing costs as much as handling a frame."""
        with self._lock:
            queues = self._queues
            decodes = (queues.inbox or self._closing) and not self._flushing and self._room() > 0
            infers = queues.frames and len(queues.in_flight) < self._most_in_flight
        if decodes:
            self._wake_decoder(self)
        if infers:
            self._wake_network(self)

    def _event(self, kind: Any, *, frames: Sequence[dict[str, Any]] = (), **fields: object) -> Event:
        with self._lock:
            self._said_s = time.monotonic()
            self._reported_bytes = self.totals.consumed_bytes
            colors = self._decoder.colors
            return Event(
                type=kind,
                consumed_bytes=self.totals.consumed_bytes,
                decoded=self._decoder.decoded,
                inferred=self.totals.inferred,
                dropped=self.totals.dropped,
                concealed=self._decoder.concealed,
                unshown=self._unshown,
                color=None if colors is None else colors.to_dict(),
                fields=fields,
                frames=frames,
            )

    def _end_if_done(self) -> None:
        with self._lock:
            done = self._flushed and self._held() == 0
        if done:
            self.end(None, done=True)

    def end(self, error: BadStream | None, *, done: bool = False) -> None:
        """End the stream, once: done, with an error, or because its client is gone."""
        with self._sending, self._lock:
            if self._ended:
                return
            event = None
            if done:
                event = self._event("ended", code=DONE, reason="done")
            elif error is not None:
                event = self._event("ended", code=error.code, reason=error.reason)
            self._ended = True
            self._queues = Queues()
        try:
            with self._sending:
                self._sink.end(event, error)
        finally:
            self._on_end(self)


def _kind(slot: Slot) -> list[tuple[str, tuple[int, ...], str]]:
    """Results of one kind fit into the same arrays."""
    return [(name, value.shape, value.dtype.str) for name, value in (slot.tensors or {}).items()]


def _first(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
