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
from onestream.wire.video import Close, Credit, Event, Message, Open, Packet, Packets

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
    """A frame for every packet, two packets late, as a decoder with B-frames; what is done ``first`` may take time."""

    delay: int = 2
    first: Callable[[Packet | None], object] = lambda _packet: None
    decoded: int = 0
    concealed: int = 0
    unshown: int = 0
    colors: Colors | None = None
    waiting: list[Frame] = field(default_factory=list)

    def feed(self, packet: Packet | None) -> list[Frame]:
        self.first(packet)
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
        self.sent: list[tuple[Event, Tensors]] = []
        self.last: list[Event | BadStream | None] = []
        self.said: list[str] = []
        self.gone = False
        self.changed = threading.Condition()

    def send(self, event: Event, tensors: Tensors) -> None:
        assert not self.last, "something came after the last word"
        assert bool(event.frames) == (event.type == "results")
        if "index" in tensors:
            assert tensors["index"].tolist() == [[frame["index"]] for frame in event.frames]
        with self.changed:
            self.events.append(event)
            self.said.append(event.type)
            if event.frames:
                self.sent.append((event, tensors))
            self.changed.notify_all()

    def end(self, event: Event | None, error: BadStream | None) -> None:
        with self.changed:
            if event is not None:
                said = (error.code, error.reason) if error else ("done", "done")
                assert (event.type, event.fields) == ("ended", dict(zip(("code", "reason"), said, strict=True)))
            self.last.append(error or event)
            self.said.append(event.fields["code"] if event else "nothing")
            self.changed.notify_all()

    def is_gone(self) -> bool:
        return self.gone

    @property
    def results(self) -> list[int]:
        return [frame["index"] for frame in self.frames]

    @property
    def frames(self) -> list[Mapping[str, Any]]:
        return [frame for event in self.events for frame in event.frames]

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (len(self.events), self.last)

    def ended(self) -> Any:
        """The last word, which is waited for."""
        self.wait_for(lambda: self.last)
        return self.last[0]


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
        self, *, bounds: Bounds | None = None, decoder: Any = None, finish: Finish | None = None, **options: Any
    ) -> tuple[Session, Client]:
        client = Client()
        session = Session(
            replace(OPEN, **options),
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
        return session, client

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


def send_all(count: int, *sessions: Session) -> None:
    """So many packets to each, ten of one after ten of another, and the end."""
    for first in range(0, count, 10):
        for session in sessions:
            session.receive(packets(first, 10))
    for session in sessions:
        session.receive(Close())


def slow(frame: Any) -> Tensors:
    time.sleep(random.Random(frame.index).uniform(0, 0.01))
    return {"index": np.array([frame.index])}


@pytest.fixture(params=[1, 3])
def server(request: pytest.FixtureRequest) -> Any:
    running = Server(slow, together=request.param)
    yield running
    running.close()


def test_every_frame_comes_once_in_order_although_the_network_overtakes(server: Server) -> None:
    """Of each of the streams that share threads."""
    opened = [server.open(results=1000) for _ in range(8)]
    send_all(100, *(session for session, _ in opened))
    for _, client in opened:
        ended = client.ended()
        assert client.results == list(range(100))
        assert (ended.type, ended.decoded, ended.inferred, ended.dropped) == ("ended", 100, 100, 0)
        assert ended.consumed_bytes == 1000
        assert client.events[0].type == "opened"
    wait_until(lambda: len(server.ended) == 8)
    assert all(session in server.ended for session, _ in opened)


def test_events_say_the_colours_of_the_newest_frame(server: Server) -> None:
    assumed, tagged = Colors("bt601", "limited", "assumed", "assumed"), Colors("bt709", "full", "file", "file")
    # It tells its colours only when it sees the first packet.
    decoder = OneToOne(colors=assumed, first=lambda _packet: setattr(decoder, "colors", tagged))
    session, client = server.open(decoder=decoder)
    assert client.events[0].color == assumed.to_dict()
    session.receive(packets(0, 4))
    session.receive(Close())
    client.ended()
    assert client.events[-1].color == tagged.to_dict()
    _, client = server.open()
    assert client.events[0].color is None


def held_back() -> tuple[OneToOne, threading.Event]:
    """A decoder that begins when it is told to, so that packets wait for it."""
    begin = threading.Event()
    return OneToOne(delay=0, first=lambda _packet: begin.wait(10)), begin


@pytest.mark.parametrize(
    ("boxes", "together", "most"),
    [(lambda _index: 1, 3, 3), (lambda index: 1 + index // 2 % 2, 4, 2)],
    ids=["as far as allowed", "and results of other shapes apart"],
)
def test_what_waits_together_goes_on_together(boxes: Callable[[int], int], together: int, most: int) -> None:
    """Results are the boxes found in a frame."""
    server = Server(lambda frame: {"boxes": np.full(boxes(frame.index), frame.index)}, together=together)
    decoder, begin = held_back()
    session, client = server.open(results=100, decoder=decoder)
    session.receive(packets(0, 24))
    begin.set()
    client.wait_for(lambda: len(client.results) == 24)
    server.close()
    assert client.results == list(range(24))
    sent = [([frame["index"] for frame in event.frames], tensors["boxes"]) for event, tensors in client.sent]
    assert max(len(indices) for indices, _ in sent) == most
    for indices, found in sent:
        assert {found.shape} == {(len(indices), boxes(index)) for index in indices}


def test_results_leave_only_by_credit_and_the_rest_waits_in_bounds(server: Server) -> None:
    """Credit that comes with packets counts, too."""
    session, client = server.open(results=4, bounds=Bounds(results=8))
    session.receive(packets(0, 100))
    client.wait_for(lambda: len(client.results) == 4)
    time.sleep(0.3)
    assert client.results == [0, 1, 2, 3]
    # What may be held, and what the decoder itself keeps.
    assert session.counts()["decoded"] - 4 <= 8 + OneToOne().delay + 1
    session.receive(Packets((), 3))
    client.wait_for(lambda: len(client.results) == 7)
    time.sleep(0.1)
    assert client.results == list(range(7))
    while len(client.results) < 100 and not client.last:
        before = len(client.results)
        session.receive(Credit(7))
        if before + 7 >= 93 and session._state is State.RECEIVING:
            session.receive(Close())
        client.wait_for(lambda before=before: len(client.results) > before or client.last)
    assert client.results == list(range(100))


def test_a_live_stream_keeps_the_newest_of_what_waits_for_credit(server: Server) -> None:
    session, client = server.open(mode="drop_oldest", results=2, decoder=OneToOne(delay=0), bounds=Bounds(results=6))
    for number in range(20):  # one after the other, so that what waits are results and no frames
        session.receive(packets(number, 1))
        wait_until(lambda number=number: session.counts()["inferred"] == number + 1)
    session.receive(Credit(10))
    session.receive(Close())
    client.ended()
    assert client.results == [0, 1, *range(14, 20)]


def test_a_live_stream_drops_the_oldest_and_counts(server: Server) -> None:
    session, client = server.open(mode="drop_oldest", results=2, bounds=Bounds(results=6))
    session.receive(packets(0, 300))
    session.receive(Close())
    client.wait_for(lambda: session.counts()["decoded"] == 300)

    def is_done() -> bool:
        session.receive(Credit(10))
        return bool(client.last)

    wait_until(is_done)
    assert client.results == sorted(set(client.results))
    assert client.results[-1] == 299, "the newest frame is never dropped"
    assert client.last[0].dropped == 300 - len(client.results) > 200


def test_a_live_stream_goes_on_at_a_key_packet_where_decoding_is_too_slow(server: Server) -> None:
    fed: list[int] = []

    def slowly(packet: Packet | None) -> None:
        if packet is not None and packet.pts is not None:
            fed.append(packet.pts)
            time.sleep(0.02)

    session, client = server.open(results=1000, mode="drop_oldest", decoder=OneToOne(delay=0, first=slowly))
    # Ten times as fast as it can be decoded, for three seconds.
    for first in range(0, 1500, 10):
        session.receive(Packets(tuple(Packet(bytes(10), n, n, 1, n % 50 == 0) for n in range(first, first + 10))))
        time.sleep(0.02)
    session.receive(Close())
    ended = client.ended()
    jumps = [after for before, after in itertools.pairwise(fed) if after != before + 1]
    assert jumps
    assert all(after % 50 == 0 for after in jumps)
    latencies = [frame["latency_ms"] for frame in client.frames]
    # A second in the inbox, a frame that was begun, and what is held behind it.
    assert max(latencies) < 2500
    assert len(client.results) + session.counts()["dropped"] == 1500
    assert client.events[-1].consumed_bytes <= 1500 * 10
    assert ended.consumed_bytes == 1500 * 10


SMALL = Bounds(buffer_bytes=1000)
AHEAD = [packets(first, 50) for first in range(0, 400, 50)]


def one_packet(data: bytes) -> Packets:
    return Packets((Packet(data, 0, 0, 1, True),))


@pytest.mark.parametrize(
    ("options", "messages", "said"),
    [
        ({"bounds": SMALL}, AHEAD, "flow): "),
        ({"bounds": SMALL, "mode": "drop_oldest"}, AHEAD, "flow): "),
        ({}, [Credit(10**6)], "flow): credit for 1000004 results"),
        # Not even alone: the decoder takes a multiple of it.
        (
            {"bounds": SMALL},
            [packets(0, 1, size=1001)],
            "too_large): a packet has 1001 bytes; at most 1000 are allowed",
        ),
        ({"bounds": Bounds(max_bitrate=8000), "mode": "drop_oldest"}, [packets(0, 100, size=100)], "too_fast): "),
        ({}, [packets(0, 3), OPEN], "bad_message): the stream is open already"),
        ({}, [one_packet(b"broken")], "failed): the stream cannot be decoded"),
        ({}, [one_packet(b"unexpected")], "failed): decoding failed: in some library"),
    ],
)
def test_who_breaks_rules_is_ended(server: Server, options: dict[str, Any], messages: list[Message], said: str) -> None:
    decoder, begin = held_back()
    session, client = server.open(decoder=decoder, **options)
    for message in messages:
        session.receive(message)
    begin.set()
    assert str(client.ended()).startswith(f"bad stream ({said}")


def test_a_packet_as_large_as_the_buffer_is_taken(server: Server) -> None:
    session, client = server.open(bounds=SMALL)
    session.receive(packets(0, 1, size=1000))
    assert client.last == []


def test_who_is_gone_or_does_nothing_is_ended(server: Server) -> None:
    gone, vanished = server.open()
    vanished.gone = True
    gone.tick()
    assert vanished.last == [None]
    gone.receive(packets(0, 1))
    assert vanished.results == []

    quick = Bounds(idle_s=0.2)
    (quiet, silent), (taking_nothing, deaf) = server.open(bounds=quick), server.open(bounds=quick, results=1)
    taking_nothing.receive(packets(0, 20))

    def both_ended() -> bool:
        quiet.tick()
        taking_nothing.tick()
        return bool(silent.last and deaf.last)

    wait_until(both_ended)
    assert str(silent.last[0]) == "bad stream (idle): the client sent nothing for 0.2 s"
    assert str(deaf.last[0]) == "bad stream (idle): the client took no result for 0.2 s"


EMPTY = one_packet(b"")


@pytest.mark.parametrize("message", [Credit(0), Credit(1), Packets(()), Packets((), 1), EMPTY])
def test_messages_that_bring_no_packet_and_take_no_result_keep_no_stream(server: Server, message: Message) -> None:
    """Beside a camera that sends packets, and a caller that takes results one by one, which both stay."""
    bounds = Bounds(idle_s=0.4, results=64)
    kept, begging = server.open(bounds=bounds)
    filming, camera = server.open(bounds=bounds, mode="drop_oldest")
    taking, slow_caller = server.open(bounds=bounds, results=1)
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
    (one, failing), (two, fine) = server.open(results=100), server.open(results=100)
    one.receive(packets(0, 20))
    two.receive(Packets(tuple(Packet(b"x", 100 + n, n, 1, True) for n in range(20))))
    two.receive(Close())
    failing.ended()
    fine.ended()
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

    session, client = server.open(results=100, decoder=Late())
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
    finishes = [Numbering() for _ in range(3)]
    opened = [server.open(results=1000, finish=finish) for finish in finishes]
    send_all(100, *(session for session, _ in opened))
    for (_, client), finish in zip(opened, finishes, strict=True):
        assert isinstance(client.ended(), Event)
        assert client.results == finish.seen == list(range(100))
        assert [frame["place"] for frame in client.frames] == list(range(1, 101))


def test_what_is_being_finished_counts_as_held_and_waits_for_credit(server: Server) -> None:
    finish = Numbering()
    session, client = server.open(results=3, finish=finish, bounds=Bounds(results=5))
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

    session, client = server.open(results=1000, mode="drop_oldest", finish=slowly, bounds=Bounds(results=4))
    for first in range(0, 100, 5):
        session.receive(packets(first, 5))
        time.sleep(0.01)
    session.receive(Close())
    client.ended()
    dropped = session.counts()["dropped"]
    assert dropped > 10
    assert len(client.results) + dropped == 100
    assert client.results == sorted(client.results)


def test_what_cannot_be_finished_ends_its_stream_only(server: Server) -> None:
    opened = [server.open(results=100, finish=finish) for finish in (Numbering(fail_at=3), Numbering())]
    send_all(20, *(session for session, _ in opened))
    (_, broken), (_, fine) = opened
    assert str(broken.ended()) == "bad stream (failed): frame 3 cannot be finished: the encoder gave up"
    assert broken.results == [0, 1, 2]
    fine.ended()
    assert fine.results == list(range(20))


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
    with pytest.raises(BadStream, match=rf"^bad stream \({code}\): ") as caught:
        Bounds(max_streams=2).check(replace(OPEN, **opened), streams=streams)
    assert caught.value.code == code
