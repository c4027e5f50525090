"""One connection of a stream: its packets go to the server, its events come back."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onestream.client._transports.base import ConversingTransport, Tensors
from onestream.client._transports.refusals import readable
from onestream.client.errors import BadStream, OnestreamError, UnexpectedResponse
from onestream.client.video.flow import Outbox
from onestream.client.video.results import StreamColor, Totals, color_in
from onestream.wire.kinds import KIND_PARAMETER
from onestream.wire.tensor_names import EVENT, MESSAGE
from onestream.wire.video import DONE, BadMessage, Event, Open, Packet, pack

_REMEMBERED = 4096
_LEAVE_S = 1.0


class Handed:
    """Remembers when the last few thousand packets were handed over. Thread-safe."""

    def __init__(self) -> None:
        self._by_pts: OrderedDict[int, float] = OrderedDict()
        self._by_order: deque[float] = deque(maxlen=_REMEMBERED)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, pts: int | None, at_s: float) -> None:
        """Note the next packet's time stamp and when it was handed over."""
        with self._lock:
            self._by_order.append(at_s)
            self._count += 1
            if pts is not None:
                self._by_pts[pts] = at_s
                if len(self._by_pts) > _REMEMBERED:
                    self._by_pts.popitem(last=False)

    def of(self, index: int, pts: int | None) -> float | None:
        """When a frame's packet was handed over; without time stamps, when the packet with the frame's number was."""
        with self._lock:
            if pts is not None and pts in self._by_pts:
                return self._by_pts[pts]
            place = index - (self._count - len(self._by_order))
            return self._by_order[place] if 0 <= place < len(self._by_order) else None


@dataclass(frozen=True, slots=True)
class Received:
    """A frame's result: what the event says of it, its tensors, and milliseconds since its packet was handed over.

    ``kind`` is what the stream's first event says; None where it says none.
    """

    fields: Mapping[str, Any]
    tensors: Tensors
    latency_ms: float
    kind: str | None


class Session:
    """A conversation with the server about one stream.

    The receiving thread calls ``on_opened()``, ``on_counts()``, ``on_results(results)`` and, at the end,
    ``on_over(session)``.
    """

    def __init__(
        self,
        transport: ConversingTransport,
        model: str,
        opening: Open,
        *,
        credit_step: int,
        on_opened: Callable[[], None],
        on_counts: Callable[[], None],
        on_results: Callable[[list[Received]], None],
        on_over: Callable[[Session], None],
        tap: Callable[[Packet], None] | None,
    ) -> None:
        self._opening, self._tap = opening, tap
        self._on_opened, self._on_counts, self._on_results, self._on_over = on_opened, on_counts, on_results, on_over
        self._handed = Handed()
        self.outbox = Outbox(opening.mode, credit_step=credit_step, on_sent=self._sent)
        self._counts = Totals()
        self.color: StreamColor | None = None
        self.failure: OnestreamError | None = None
        self.ended_reason: str | None = None
        self._kind: str | None = None
        self.is_open = False
        self.began_s = self.heard_s = time.monotonic()
        """When the connection began, and when the server last went on: opened, took bytes, gave results or ended."""
        self._over = threading.Event()
        self._conversation = transport.converse(model, MESSAGE, self._contents())
        self._receiver = threading.Thread(target=self._receive, name="onestream-stream-results", daemon=True)
        self._receiver.start()

    @property
    def totals(self) -> Totals:
        """What became of this connection's frames so far."""
        unsent = self.outbox.dropped
        return self._counts + Totals(dropped=unsent, unsent=unsent)

    @property
    def over(self) -> bool:
        """Whether the server's last word came, or the connection failed."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end. Returns whether it came."""
        return self._over.wait(timeout_s)

    def leave(self) -> None:
        """Let the conversation end in an orderly way, but soon.

        After the server's last word the call ends by itself. Triton 2.51 may keep the request of one that is given up
        in that moment for ever, and then its stop takes as long as it is allowed to.
        """
        self._receiver.join(_LEAVE_S if self.over else 0.0)
        self.cancel()

    def fail(self, failure: OnestreamError) -> None:
        """End the conversation with an error, unless it has ended before."""
        self._fail_once(failure)
        self.cancel()

    def cancel(self) -> None:
        """End the conversation now."""
        self.outbox.close()
        self._conversation.cancel()

    def _fail_once(self, failure: OnestreamError) -> None:
        if self.failure is None and self.ended_reason is None:
            self.failure = failure

    def _sent(self, packet: Packet, handed_s: float) -> None:
        self._handed.add(packet.pts, handed_s)
        if self._tap is not None:
            self._tap(packet)

    def _contents(self) -> Iterator[bytes]:
        """The messages of this stream; gRPC's thread reads them."""
        yield pack(self._opening)
        while (message := self.outbox.next_message()) is not None:
            yield pack(message)
        if self.outbox.oversized is not None:
            self.fail(
                BadStream(
                    "too_large",
                    f"a packet has {self.outbox.oversized} bytes; the server holds {self.outbox.buffer_bytes}",
                )
            )

    def _receive(self) -> None:
        try:
            for answer in self._conversation.answers():
                self._take(answer)
            if not self.over:
                raise UnexpectedResponse("the server ended the stream without saying why")
        except OnestreamError as error:
            self._fail_once(error)
        except Exception as error:  # nobody may wait for ever, whatever the answer holds
            self._fail_once(UnexpectedResponse(f"an answer cannot be read: {type(error).__name__}: {error}"))
        finally:
            self._over.set()
            self.cancel()
            self._on_over(self)

    def _take(self, answer: Tensors) -> None:
        event = _event_in(answer)
        if event.type != "ended" and (event.type == "opened") == self.is_open:
            state = "open already" if self.is_open else "not open yet"
            raise UnexpectedResponse(f"an event {event.type!r} of a stream that is {state}")
        if event.consumed_bytes > self.outbox.sent_bytes:
            raise UnexpectedResponse(
                f"an event says that {event.consumed_bytes} bytes are consumed, of {self.outbox.sent_bytes} sent"
            )
        # A server that only talks, and does nothing of what it is waited for, is as silent as one that is dead.
        if event.type in ("opened", "ended") or event.frames or event.consumed_bytes > self.outbox.consumed_bytes:
            self.heard_s = time.monotonic()
        self._counts = Totals(event.decoded, event.inferred, event.dropped, event.concealed, unshown=event.unshown)
        self.color = color_in(event.color)
        self.outbox.consumed(event.consumed_bytes)
        if event.type == "opened":
            self.outbox.opened(_whole(event.fields, "buffer_bytes"))
            kind = event.fields.get(KIND_PARAMETER)
            self._kind = kind if isinstance(kind, str) else None
            self.is_open = True
            self._on_opened()
        elif event.type == "results":
            self._on_results(self._received(event, {name: array for name, array in answer.items() if name != EVENT}))
        elif event.type == "ended":
            code, reason = event.fields.get("code"), readable(str(event.fields.get("reason", "")))
            if code == DONE:
                self.ended_reason = reason
            elif isinstance(code, str):
                self._fail_once(BadStream(code, reason))
            else:
                raise UnexpectedResponse(f"the last event has code={code!r}, expected a word")
            self.outbox.ended()
            self._over.set()
        else:
            self._on_counts()

    def _received(self, event: Event, tensors: Tensors) -> list[Received]:
        shapes = {name: array.shape for name, array in tensors.items()}
        if any(shape[:1] != (len(event.frames),) for shape in shapes.values()):
            raise UnexpectedResponse(f"results of {len(event.frames)} frames came with tensors of the shapes {shapes}")
        now, received = time.monotonic(), []
        for row, frame in enumerate(event.frames):
            server_ms = float(frame.get("latency_ms", 0.0))
            handed_s = self._handed.of(_whole(frame, "index"), frame.get("pts"))
            latency_ms = server_ms if handed_s is None else 1000 * (now - handed_s)
            # Copies, so that a result that is kept does not keep its neighbours in memory.
            copies = {name: array[row].copy() for name, array in tensors.items()}
            received.append(Received(frame, copies, latency_ms, self._kind))
            self.outbox.answered(server_ms / 1000)
        return received


def _event_in(answer: Tensors) -> Event:
    said = answer.get(EVENT)
    if said is None or said.size != 1:
        raise UnexpectedResponse(
            f"the server answered {sorted(answer) or 'nothing'}, expected one {EVENT!r} beside them"
        )
    try:
        return Event.from_json(said.reshape(-1)[0])
    except BadMessage as error:
        raise UnexpectedResponse(str(error)) from None


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value: Any = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UnexpectedResponse(f"an event has {name}={value!r}, expected a whole number from 0 on")
    return value
