"""A stream's bookkeeping, with a decoder and a network of a few lines: order, bounds, credit, drops and ends."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S, wait_until

from onestream.preprocess.errors import BadSample
from onestream.preprocess.video.common.color import Colors
from onestream.serving.video.bounds import BadStream, Bounds
from onestream.serving.video.session import Finish, Session
from onestream.serving.video.stream_types import ResponseSink, Slot, State, Tensors
from onestream.serving.video.thread_pools import BatchingPool, RoundRobinPool
from onestream.wire.video import Close, Credit, Event, Message, Mode, Open, Packet, Packets

OPEN = Open(codec="h264", width=64, height=48, time_base=Fraction(1, 30), results=4)


@dataclass
class Frame:
    index: int
    pts: int | None
    pts_seconds: float | None
    pixels: Any = None

    @property
    def source_pts(self) -> int | None:
        return self.pts


@dataclass
class OneToOne:
    """A frame for every packet, two packets late, as a decoder with B-frames."""

    delay: int = 2
    decoded: int = 0
    concealed: int = 0
    unshown: int = 0
    colors: Colors | None = None
    waiting: list[Frame] = field(default_factory=list)

    def feed(self, packet: Packet | None) -> list[Frame]:
        if packet is not None:
            if packet.data == b"broken":
                raise BadSample("the stream cannot be decoded")
            if packet.data == b"unexpected":
                raise ZeroDivisionError("in some library")
            self.waiting.append(Frame(self.decoded, packet.pts, None))
            self.decoded += 1
        keep = 0 if packet is None else self.delay
        out, self.waiting = self.waiting[: len(self.waiting) - keep], self.waiting[len(self.waiting) - keep :]
        return out


class Client(ResponseSink):
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.last: list[Event | BadStream | None] = []
        self.gone = False
        self.changed = threading.Condition()

    def send(self, event: Event, tensors: Tensors) -> None:
        assert not self.last, "something came after the last word"
        assert bool(event.frames) == (event.type == "results")
        if "index" in tensors:
            assert tensors["index"].tolist() == [[frame["index"]] for frame in event.frames]
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def end(self, event: Event | None, error: BadStream | None) -> None:
        with self.changed:
            if event is not None:
                said = (error.code, error.reason) if error else ("done", "done")
                assert (event.type, event.fields) == ("ended", dict(zip(("code", "reason"), said, strict=True)))
            self.last.append(error or event)
            self.changed.notify_all()

    def is_gone(self) -> bool:
        return self.gone

    @property
    def results(self) -> list[int]:
        return [frame["index"] for frame in self.frames]

    @property
    def frames(self) -> list[Mapping[str, Any]]:
        return [frame for event in self.events for frame in event.frames]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), (len(self.events), self.last)


@dataclass
class Server:
    """The pools of a server, and a network that takes its time."""

    infer: Callable[[Any], Tensors]
    together: int = 1
    ended: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.decoders: RoundRobinPool[Session] = RoundRobinPool("decode", 2, Session.next_packets)
        self.callers: BatchingPool[Session, Slot] = BatchingPool("infer", 6, Session.next_frames, self.work, most=3)
        self.finishers: RoundRobinPool[Session] = RoundRobinPool("finish", 3, Session.next_result)

    def open(
        self,
        client: Client,
        *,
        bounds: Bounds | None = None,
        decoder: Any = None,
        finish: Finish | None = None,
        **options: Any,
    ) -> Session:
        return Session(
            Open(**{name: getattr(OPEN, name) for name in Open.__slots__ if name != "type"} | options),
            decoder or OneToOne(),
            client,
            bounds=bounds or Bounds(),
            wake_decoder=self.decoders.wake,
            wake_network=self.callers.wake,
            on_end=self.ended.append,
            together=self.together,
            finish=finish,
            wake_finisher=self.finishers.wake,
        )

    def work(self, pieces: list[tuple[Session, Slot]]) -> None:
        for session, group in groupby(pieces, lambda piece: piece[0]):
            try:
                session.take_results([(slot, self.infer(slot.frame)) for _, slot in group])
            except Exception as error:
                session.fail(error)

    def close(self) -> None:
        self.finishers.close()
        self.decoders.close()
        self.callers.close()


def packets(first: int, count: int, size: int = 10) -> Packets:
    return Packets(tuple(Packet(bytes(size), n, n, 1, n == 0) for n in range(first, first + count)))


def slow(frame: Any) -> Tensors:
    time.sleep(random.Random(frame.index).uniform(0, 0.01))
    return {"index": np.array([frame.index])}


@pytest.fixture(params=[1, 3])
def server(request: pytest.FixtureRequest) -> Any:
    running = Server(slow, together=request.param)
    yield running
    running.close()


def test_every_frame_comes_once_in_order_although_the_network_overtakes(server: Server) -> None:
    client = Client()
    session = server.open(client, results=1000)
    for first in range(0, 200, 10):
        session.receive(packets(first, 10))
    session.receive(Close())
    client.wait_for(lambda: bool(client.last))
    assert client.results == list(range(200))
    ended = client.last[0]
    assert (ended.type, ended.decoded, ended.inferred, ended.dropped) == ("ended", 200, 200, 0)
    assert ended.consumed_bytes == 2000
    assert server.ended == [session]
    assert client.events[0].type == "opened"


def test_events_say_the_colours_of_the_newest_frame(server: Server) -> None:
    assumed, tagged = Colors("bt601", "limited", "assumed", "assumed"), Colors("bt709", "full", "file", "file")

    class Tagged(OneToOne):
        """Tells its colours only when it sees the first packet."""

        def feed(self, packet: Packet | None) -> list[Frame]:
            self.colors = tagged
            return super().feed(packet)

    client = Client()
    session = server.open(client, decoder=Tagged(colors=assumed))
    assert client.events[0].color == assumed.to_dict()
    session.receive(packets(0, 4))
    session.receive(Close())
    client.wait_for(lambda: bool(client.last))
    assert client.events[-1].color == tagged.to_dict()
    assert Event.from_json(client.events[-1].to_json()) == client.events[-1]
    server.open(client := Client())
    assert client.events[0].color is None


def held_back() -> tuple[OneToOne, threading.Event]:
    """A decoder that begins when it is told to, so that packets wait for it."""
    begin = threading.Event()

    class Held(OneToOne):
        def feed(self, packet: Packet | None) -> list[Frame]:
            assert begin.wait(10)
            return super().feed(packet)

    return Held(delay=0), begin


def test_what_waits_together_goes_on_together_as_far_as_allowed() -> None:
    server = Server(lambda frame: {"index": np.array([frame.index])}, together=3)
    decoder, begin = held_back()
    client = Client()
    session = server.open(client, results=100, decoder=decoder)
    session.receive(packets(0, 30))
    begin.set()
    client.wait_for(lambda: len(client.results) == 30)
    server.close()
    sizes = [len(event.frames) for event in client.events if event.type == "results"]
    assert client.results == list(range(30))
    assert max(sizes) == 3


class Slow(OneToOne):
    def feed(self, packet: Packet | None) -> list[Frame]:
        until_s = time.thread_time() + 0.025
        while time.thread_time() < until_s:
            pass
        return super().feed(packet)


class Delayed(OneToOne):
    def feed(self, packet: Packet | None) -> list[Frame]:
        # As where other programs have the processor, which is not this stream's doing.
        time.sleep(0.025)
        return super().feed(packet)


@pytest.mark.parametrize(
    ("decoder", "bounds", "turn"),
    [
        (OneToOne(delay=0), Bounds(), 4),
        (Slow(delay=0), Bounds(), 1),
        (Delayed(delay=0), Bounds(), 4),
        (OneToOne(delay=0), Bounds(buffer_bytes=10000), 2),
        (OneToOne(delay=0), Bounds(results=3), 3),
    ],
)
def test_a_turn_of_the_decoder_is_bounded(decoder: OneToOne, bounds: Bounds, turn: int) -> None:
    """In packets, in CPU time, in bytes before the client is told, and in frames that may be held."""
    client = Client()
    session = Session(
        replace(OPEN, results=100),
        decoder,
        client,
        bounds=bounds,
        wake_decoder=lambda _session: None,
        wake_network=lambda _session: None,
        on_end=lambda _session: None,
        together=4,
    )
    session.receive(packets(0, 8, size=1000))
    seen: list[int] = []
    while len(seen) < 8:
        before = session.counts()["decoded"]
        job = session.next_packets()
        job()
        assert session.counts()["decoded"] == min(before + turn, 8)
        slots = session.next_frames(8)
        seen += [slot.frame.index for slot in slots]
        session.take_results([(slot, {}) for slot in slots])
    assert seen == client.results == list(range(8))
    assert session.next_packets() is None
    assert max(event.consumed_bytes for event in client.events) == 8000


def test_results_of_other_shapes_leave_apart() -> None:
    """Such as the boxes found in a frame."""
    server = Server(lambda frame: {"boxes": np.full(1 + frame.index // 2 % 2, frame.index)}, together=4)
    decoder, begin = held_back()
    client = Client()
    shapes: list[tuple[list[int], tuple[int, ...]]] = []
    send = client.send

    def noting(event: Event, tensors: Tensors) -> None:
        if event.type == "results":
            shapes.append(([frame["index"] for frame in event.frames], tensors["boxes"].shape))
        send(event, tensors)

    client.send = noting  # type: ignore[method-assign]
    session = server.open(client, results=100, decoder=decoder)
    session.receive(packets(0, 24))
    begin.set()
    client.wait_for(lambda: len(client.results) == 24)
    server.close()
    assert client.results == list(range(24))
    assert any(len(indices) == 2 for indices, _ in shapes)
    for indices, shape in shapes:
        assert {shape} == {(len(indices), 1 + index // 2 % 2) for index in indices}


def test_results_leave_only_by_credit_and_the_rest_waits_in_bounds(server: Server) -> None:
    client = Client()
    session = server.open(client, results=4, bounds=Bounds(results=8))
    session.receive(packets(0, 100))
    client.wait_for(lambda: len(client.results) == 4)
    time.sleep(0.3)
    assert client.results == [0, 1, 2, 3]
    held = session.counts()["decoded"] - len(client.results)
    # What may be held, and what the decoder itself keeps.
    assert held <= 8 + OneToOne().delay + 1
    while len(client.results) < 100 and not client.last:
        before = len(client.results)
        session.receive(Credit(7))
        if before + 7 >= 93 and session._state is State.RECEIVING:
            session.receive(Close())
        client.wait_for(lambda before=before: len(client.results) > before or bool(client.last))
    assert client.results == list(range(100))


def test_credit_that_comes_with_packets_counts(server: Server) -> None:
    client = Client()
    session = server.open(client, results=4)
    session.receive(packets(0, 6))
    client.wait_for(lambda: len(client.results) == 4)
    session.receive(Packets(packets(6, 3).packets, 3))
    client.wait_for(lambda: len(client.results) == 7)
    time.sleep(0.1)
    assert client.results == list(range(7))
    session.receive(Packets(packets(9, 1).packets, 10**6))
    client.wait_for(lambda: bool(client.last))
    assert "credit for 1000000 results" in str(client.last[0])


def test_a_live_stream_keeps_the_newest_of_what_waits_for_credit(server: Server) -> None:
    client = Client()
    session = server.open(client, mode="drop_oldest", results=2, decoder=OneToOne(delay=0), bounds=Bounds(results=6))
    for number in range(20):  # one after the other, so that what waits are results and no frames
        session.receive(packets(number, 1))
        wait_until(lambda number=number: session.counts()["inferred"] == number + 1)
    session.receive(Credit(10))
    session.receive(Close())
    client.wait_for(lambda: bool(client.last))
    assert client.results == [0, 1, *range(14, 20)]


def test_a_live_stream_drops_the_oldest_and_counts(server: Server) -> None:
    client = Client()
    session = server.open(client, mode="drop_oldest", results=2, bounds=Bounds(results=6))
    session.receive(packets(0, 300))
    session.receive(Close())
    client.wait_for(lambda: session.counts()["decoded"] == 300)
    for _ in range(200):
        session.receive(Credit(10))
        if client.last:
            break
        time.sleep(0.02)
    client.wait_for(lambda: bool(client.last))
    ended = client.last[0]
    assert isinstance(ended, Event)
    assert client.results == sorted(set(client.results))
    assert client.results[-1] == 299, "the newest frame is never dropped"
    assert ended.dropped == 300 - len(client.results) > 200


def test_a_live_stream_goes_on_at_a_key_packet_where_decoding_is_too_slow(server: Server) -> None:
    fed: list[int] = []

    class Slow(OneToOne):
        def feed(self, packet: Packet | None) -> list[Frame]:
            if packet is not None and packet.pts is not None:
                fed.append(packet.pts)
                time.sleep(0.02)
            return super().feed(packet)

    client = Client()
    session = server.open(client, results=1000, mode="drop_oldest", decoder=Slow(delay=0))
    # Ten times as fast as it can be decoded, for three seconds.
    for first in range(0, 1500, 10):
        session.receive(Packets(tuple(Packet(bytes(10), n, n, 1, n % 50 == 0) for n in range(first, first + 10))))
        time.sleep(0.02)
    session.receive(Close())
    client.wait_for(lambda: bool(client.last))
    jumps = [after for before, after in itertools.pairwise(fed) if after != before + 1]
    assert jumps
    assert all(after % 50 == 0 for after in jumps)
    latencies = [frame["latency_ms"] for frame in client.frames]
    # A second in the inbox, a frame that was begun, and what is held behind it.
    assert max(latencies) < 2500
    counts = session.counts()
    assert len(client.results) + counts["dropped"] == 1500
    assert client.events[-1].consumed_bytes <= 1500 * 10
    ended = client.last[0]
    assert ended.consumed_bytes == 1500 * 10


def test_streams_share_threads_and_do_not_mix(server: Server) -> None:
    clients = [Client() for _ in range(8)]
    sessions = [server.open(client, results=1000) for client in clients]
    for first in range(0, 60, 5):
        for session in sessions:
            session.receive(packets(first, 5))
    for session in sessions:
        session.receive(Close())
    for client in clients:
        client.wait_for(lambda client=client: bool(client.last))
        assert client.results == list(range(60))


@pytest.mark.parametrize("mode", ["block", "drop_oldest"])
def test_who_sends_too_far_ahead_is_ended(server: Server, mode: Mode) -> None:
    client = Client()
    gate = threading.Event()

    class Stuck(OneToOne):
        def feed(self, packet: Packet | None) -> list[Frame]:
            gate.wait(10)
            return super().feed(packet)

    session = server.open(client, mode=mode, bounds=Bounds(buffer_bytes=1000), decoder=Stuck())
    for first in range(0, 400, 50):
        session.receive(packets(first, 50))
    gate.set()
    client.wait_for(lambda: bool(client.last))
    assert isinstance(client.last[0], BadStream)
    assert client.last[0].code == "flow"


def test_no_packet_is_larger_than_the_buffer(server: Server) -> None:
    """Not even alone: the decoder takes a multiple of it."""
    client, fine = Client(), Client()
    bounds = Bounds(buffer_bytes=1000)
    server.open(fine, bounds=bounds).receive(packets(0, 1, size=1000))
    server.open(client, bounds=bounds).receive(packets(0, 1, size=1001))
    client.wait_for(lambda: bool(client.last))
    assert str(client.last[0]) == "bad stream (too_large): a packet has 1001 bytes; at most 1000 are allowed"
    assert fine.last == []


def test_ends_with_reasons(server: Server) -> None:
    broken, vanished, silent, deaf = Client(), Client(), Client(), Client()
    session = server.open(broken)
    session.receive(Packets((Packet(b"broken", 0, 0, 1, True),)))
    broken.wait_for(lambda: bool(broken.last))
    assert str(broken.last[0]) == "bad stream (failed): the stream cannot be decoded"

    surprised = Client()
    server.open(surprised).receive(Packets((Packet(b"unexpected", 0, 0, 1, True),)))
    surprised.wait_for(lambda: bool(surprised.last))
    assert str(surprised.last[0]) == "bad stream (failed): decoding failed: in some library"

    gone = server.open(vanished)
    vanished.gone = True
    gone.tick()
    assert vanished.last == [None]
    gone.receive(packets(0, 1))
    assert vanished.results == []

    quick = Bounds(idle_s=0.2)
    quiet, taking_nothing = server.open(silent, bounds=quick), server.open(deaf, bounds=quick, results=1)
    taking_nothing.receive(packets(0, 20))
    deadline = time.monotonic() + PATIENCE_S
    while not (silent.last and deaf.last) and time.monotonic() < deadline:
        quiet.tick()
        taking_nothing.tick()
        time.sleep(0.05)
    assert str(silent.last[0]) == "bad stream (idle): the client sent nothing for 0.2 s"
    assert str(deaf.last[0]) == "bad stream (idle): the client took no result for 0.2 s"


EMPTY = Packets((Packet(b"", 0, 0, 1, True),))


@pytest.mark.parametrize("message", [Credit(0), Credit(1), Packets(()), Packets((), 1), EMPTY])
def test_messages_that_bring_no_packet_and_take_no_result_keep_no_stream(server: Server, message: Message) -> None:
    """Beside a camera that sends packets, and a caller that takes results one by one, which both stay."""
    bounds = Bounds(idle_s=0.4, results=64)
    begging, camera, slow_caller = Client(), Client(), Client()
    kept = server.open(begging, bounds=bounds)
    filming = server.open(camera, bounds=bounds, mode="drop_oldest")
    taking = server.open(slow_caller, bounds=bounds, results=1)
    taking.receive(packets(0, 60))
    deadline = time.monotonic() + PATIENCE_S
    number = 0
    while not begging.last and time.monotonic() < deadline:
        kept.receive(message)
        filming.receive(packets(number, 1))
        if len(slow_caller.results) > number:
            taking.receive(Credit(1))
        for session in (kept, filming, taking):
            session.tick()
        number = len(slow_caller.results)
        time.sleep(0.05)
    assert str(begging.last[0]) == "bad stream (idle): the client sent nothing for 0.4 s"
    assert camera.last == slow_caller.last == []


def test_a_network_that_fails_ends_its_stream_only() -> None:
    def infer(frame: Any) -> Tensors:
        if frame.index == 5 and frame.pts == 5:
            raise RuntimeError("no such model\nat some place")
        return {}

    server = Server(infer)
    failing, fine = Client(), Client()
    one = server.open(failing, results=100)
    two = server.open(fine, results=100)
    one.receive(packets(0, 20))
    two.receive(Packets(tuple(Packet(b"x", 100 + n, n, 1, True) for n in range(20))))
    two.receive(Close())
    failing.wait_for(lambda: bool(failing.last))
    fine.wait_for(lambda: bool(fine.last))
    server.close()
    assert str(failing.last[0]) == "bad stream (failed): the network failed: no such model"
    assert fine.results == list(range(20))


def test_packets_that_a_decoder_holds_back_are_not_told_as_unshown(server: Server) -> None:
    """Before the first frame every packet may be one that is never shown; a count that falls would be no count."""

    class Late(OneToOne):
        def feed(self, packet: Packet | None) -> list[Frame]:
            if packet is not None and packet.pts is not None and packet.pts < 5:
                self.unshown += 1
                return []
            self.unshown = 2
            return super().feed(packet)

    client = Client()
    session = server.open(client, results=100, decoder=Late())
    session.receive(packets(0, 4))
    time.sleep(0.1)
    assert session.counts()["unshown"] == 0
    session.receive(packets(4, 20))
    client.wait_for(lambda: len(client.results) > 5)
    assert {event.unshown for event in client.events if event.type == "results"} == {2}


class Numbering:
    """Finishes as an encoder does: what leaves depends on everything that left before."""

    def __init__(self, *, fail_at: int = -1) -> None:
        self.seen: list[int] = []
        self.busy = threading.Lock()
        self.fail_at = fail_at

    def __call__(self, frame: Any, tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
        assert self.busy.acquire(blocking=False), "two frames of one stream were finished at once"
        try:
            time.sleep(random.Random(frame.index).uniform(0, 0.004))
            assert tensors["index"][0] == frame.index
            if frame.index == self.fail_at:
                raise ArithmeticError("the encoder gave up")
            self.seen.append(frame.index)
            return {}, {"place": len(self.seen)}
        finally:
            self.busy.release()


def test_results_are_finished_one_after_the_other_in_order_and_only_those_that_leave(server: Server) -> None:
    clients = [Client() for _ in range(3)]
    finishes = [Numbering() for _ in clients]
    sessions = [
        server.open(client, results=1000, finish=finish) for client, finish in zip(clients, finishes, strict=True)
    ]
    for first in range(0, 100, 10):
        for session in sessions:
            session.receive(packets(first, 10))
    for session in sessions:
        session.receive(Close())
    for client, finish in zip(clients, finishes, strict=True):
        client.wait_for(lambda: bool(client.last))  # noqa: B023 (called at once)
        assert client.results == finish.seen == list(range(100))
        assert [frame["place"] for frame in client.frames] == list(range(1, 101))
        assert isinstance(client.last[0], Event)


def test_what_is_being_finished_counts_as_held_and_waits_for_credit(server: Server) -> None:
    client, finish = Client(), Numbering()
    session = server.open(client, results=3, finish=finish, bounds=Bounds(results=5))
    session.receive(packets(0, 100))
    client.wait_for(lambda: len(client.results) == 3)
    time.sleep(0.2)
    assert finish.seen == [0, 1, 2]
    # Three left, five are held, two more are in the decoder that delays by two.
    assert session.counts()["decoded"] <= 3 + 5 + 2 + 1
    session.receive(Credit(10))
    client.wait_for(lambda: len(client.results) == 13)


def test_a_live_stream_that_is_finished_slowly_drops_before_and_never_after(server: Server) -> None:
    def slowly(frame: Any, tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:  # noqa: ARG001
        time.sleep(0.02)
        return {}, {}

    client = Client()
    session = server.open(client, results=1000, mode="drop_oldest", finish=slowly, bounds=Bounds(results=4))
    for first in range(0, 100, 5):
        session.receive(packets(first, 5))
        time.sleep(0.01)
    session.receive(Close())
    client.wait_for(lambda: bool(client.last))
    counts = session.counts()
    assert counts["dropped"] > 10
    assert len(client.results) + counts["dropped"] == 100
    assert client.results == sorted(client.results)


def test_what_cannot_be_finished_ends_its_stream_only(server: Server) -> None:
    broken, fine = Client(), Client()
    for client, finish in ((broken, Numbering(fail_at=3)), (fine, Numbering())):
        session = server.open(client, results=100, finish=finish)
        session.receive(packets(0, 20))
        session.receive(Close())
    broken.wait_for(lambda: bool(broken.last))
    (error,) = broken.last
    assert isinstance(error, BadStream)
    assert error.reason == "frame 3 cannot be finished: the encoder gave up"
    assert broken.results == [0, 1, 2]
    fine.wait_for(lambda: bool(fine.last))
    assert fine.results == list(range(20))


def test_messages_out_of_place_end_the_stream(server: Server) -> None:
    for messages in ([OPEN], [Close(), packets(0, 1)]):
        client = Client()
        session = server.open(client, decoder=OneToOne(delay=10**6))
        session.receive(packets(0, 3))
        for message in messages:
            session.receive(message)
        client.wait_for(lambda client=client: bool(client.last))
        assert isinstance(client.last[0], BadStream | Event)


def test_a_live_stream_that_is_too_fast_is_ended(server: Server) -> None:
    client = Client()
    session = server.open(client, mode="drop_oldest", bounds=Bounds(max_bitrate=8000))
    for first in range(0, 100, 10):
        session.receive(packets(first, 10, size=100))
    client.wait_for(lambda: bool(client.last))
    assert isinstance(client.last[0], BadStream)
    assert client.last[0].code == "too_fast"


@pytest.mark.parametrize(
    ("opened", "streams", "code"),
    [
        ({}, 2, "too_many_streams"),
        ({"width": 4000, "height": 3000}, 0, "too_large"),
        ({"fps": 1000.0}, 0, "too_fast"),
        ({"bitrate": 10**9}, 0, "too_fast"),
        ({"results": 0}, 0, "bad_message"),
    ],
)
def test_what_a_stream_may_not_ask_for_is_refused_at_once(opened: dict[str, Any], streams: int, code: str) -> None:
    asked = Open(**{name: getattr(OPEN, name) for name in Open.__slots__ if name != "type"} | opened)
    with pytest.raises(BadStream) as caught:
        Bounds(max_streams=2).check(asked, streams=streams)
    assert caught.value.code == code
    assert str(caught.value).startswith(f"bad stream ({code}): ")
