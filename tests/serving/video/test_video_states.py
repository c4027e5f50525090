"""How a stream goes from state to state, step by step and without threads, and what its inbox lets go."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_video_session import OPEN, Client, Frame, OneToOne, packets

from onestream.serving.video import inbox
from onestream.serving.video.bounds import BadStream, Bounds
from onestream.serving.video.inbox import Inbox
from onestream.serving.video.session import Session
from onestream.serving.video.stream_types import ForbiddenTransition, State, Totals
from onestream.wire.video import Close, Credit, Packet, Packets

ORDER = [State.RECEIVING, State.CLOSING, State.FLUSHING, State.DRAINING, State.ENDED]


def test_a_state_leads_to_the_next_or_to_the_end_and_to_no_other() -> None:
    assert list(State) == ORDER
    allowed = {*itertools.pairwise(ORDER), *((state, State.ENDED) for state in ORDER[:-1])}
    for now, following in itertools.product(ORDER, ORDER):
        if (now, following) in allowed:
            assert now.to(following) is following
        else:
            with pytest.raises(ForbiddenTransition, match=f"{now.name} cannot become {following.name}"):
                now.to(following)


@dataclass
class Stream:
    """A session, with each kind of work done when a test says so; ``woken`` is who was called since the last look."""

    client: Client = field(default_factory=Client)
    decoder: Any = field(default_factory=lambda: OneToOne(delay=1))
    bounds: Bounds = field(default_factory=Bounds)
    together: int = 1
    woken: set[str] = field(default_factory=set)
    ends: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = Session(
            OPEN,
            self.decoder,
            self.client,
            bounds=self.bounds,
            together=self.together,
            wake_decoder=lambda _: self.woken.add("decoder"),
            wake_network=lambda _: self.woken.add("network"),
            on_end=self.ends.append,
        )
        self.send = self.session.receive

    def decode(self) -> bool:
        job = self.session.next_packets()
        if job is not None:
            job()
        return job is not None

    def infer(self) -> int:
        slots = self.session.next_frames(100)
        self.session.take_results([(slot, {"index": np.array([slot.frame.index])}) for slot in slots])
        return len(slots)

    def bring_to(self, state: State) -> None:
        next(reached for reached in self._states() if reached is state)

    def _states(self) -> Iterator[State]:
        """Two packets, of which the decoder keeps one back to the end."""
        self.send(packets(0, 2))
        yield State.RECEIVING
        self.send(Close())
        yield State.CLOSING
        assert (self.decode(), self.decode(), self.infer()) == (True, True, 1)
        flush = self.session.next_packets()
        assert flush is not None
        assert self.session.next_packets() is None, "the decoder is told the end once"
        yield State.FLUSHING
        flush()
        yield State.DRAINING


@pytest.mark.parametrize("state", ORDER[:-1])
def test_an_error_ends_a_stream_in_any_state_once_and_nothing_follows(state: State) -> None:
    stream = Stream()
    stream.bring_to(state)
    in_flight = stream.session.next_frames(100)
    stream.session.end(BadStream("failed", "no more"))
    said = list(stream.client.said)
    assert said[-1] == "failed"
    stream.woken.clear()
    for message in (Close(), Credit(5), packets(9, 1), Packets(()), Close()):
        stream.send(message)
    stream.session.take_results([(slot, {"index": np.array([0])}) for slot in in_flight])
    stream.session.end(None, done=True)
    stream.session.end(BadStream("idle", "too late"))
    stream.session.tick()
    assert not stream.decode()
    assert stream.infer() == 0
    assert stream.client.said == said
    assert (stream.session.ended, stream.ends, stream.woken) == (True, [stream.session], set())


def test_what_is_being_decoded_at_the_end_is_let_go() -> None:
    def end_meanwhile(_packet: Packet | None) -> None:
        stream.decoder.waiting.append(Frame(0, 0, None))
        stream.session.end(BadStream("failed", "no more"))
        stream.woken.clear()

    stream = Stream(decoder=OneToOne(delay=1, first=end_meanwhile))
    stream.bring_to(State.RECEIVING)
    assert stream.decode()
    assert stream.client.said == ["opened", "failed"]
    assert stream.woken == set()
    assert stream.infer() == 0


def at_work(_packet: Packet | None) -> None:
    until_s = time.thread_time() + 0.025
    while time.thread_time() < until_s:
        pass


def elsewhere(_packet: Packet | None) -> None:
    """As where other programs have the processor, which is not this stream's doing."""
    time.sleep(0.025)


@pytest.mark.parametrize(
    ("decoder", "bounds", "turn"),
    [
        (OneToOne(delay=0), Bounds(), 4),
        (OneToOne(delay=0, first=at_work), Bounds(), 1),
        (OneToOne(delay=0, first=elsewhere), Bounds(), 4),
        (OneToOne(delay=0), Bounds(buffer_bytes=10000), 2),
        (OneToOne(delay=0), Bounds(results=3), 3),
    ],
)
def test_a_turn_of_the_decoder_is_bounded(decoder: OneToOne, bounds: Bounds, turn: int) -> None:
    """In packets, in CPU time, in bytes before the client is told, and in frames that may be held."""
    stream = Stream(decoder=decoder, bounds=bounds, together=4)
    stream.send(Credit(8))
    stream.send(packets(0, 8, size=1000))
    while (before := decoder.decoded) < 8:
        assert stream.decode()
        assert decoder.decoded == min(before + turn, 8)
        stream.infer()
    assert stream.client.results == list(range(8))
    assert not stream.decode()
    assert max(event.consumed_bytes for event in stream.client.events) == 8000


@pytest.mark.parametrize("state", [State.CLOSING, State.FLUSHING, State.DRAINING])
@pytest.mark.parametrize("message", [Close(), packets(9, 1), Packets(())], ids=str)
def test_after_close_nothing_may_be_closed_or_sent(state: State, message: Any) -> None:
    stream = Stream()
    stream.bring_to(state)
    stream.woken.clear()
    stream.send(Credit(1))
    assert not stream.session.ended
    assert ("decoder" in stream.woken) == (state is State.CLOSING)
    stream.send(message)
    assert stream.client.said[-1] == "bad_message"
    assert stream.ends == [stream.session]


EVENTS = st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.sampled_from([0.0, 0.4, 1.2]), st.integers(0, 3)))


@given(EVENTS, st.sampled_from(["block", "drop_oldest"]))
def test_an_inbox_drops_late_groups_up_to_a_key_packet_and_counts_them(events: Any, mode: Any) -> None:
    """Each event is a packet of some bytes that comes, some time that passes, and how many packets are taken then."""
    now_s, totals = 0.0, Totals()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inbox, "time", SimpleNamespace(monotonic=lambda: now_s))
        box = Inbox(mode, Bounds(), totals)
        sent: list[Packet] = []
        taken: list[Packet] = []
        for number, (size, is_key, passes_s, takes) in enumerate(events):
            sent.append(Packet(bytes(size), number, number, 1, is_key))
            assert box.put([sent[-1]])
            now_s += passes_s
            box.drop_late()
            for _ in range(min(takes, len(box))):
                size = box.next_bytes
                packet, _ = box.take()
                assert len(packet.data) == size
                box.consumed(size)
                taken.append(packet)
        gone = len(sent) - len(taken) - len(box)
        assert totals.dropped == gone
        assert mode == "drop_oldest" or gone == 0
        while box:
            taken.append(box.take()[0])
            box.consumed(len(taken[-1].data))
    assert (box.held_bytes, totals.consumed_bytes) == (0, sum(len(packet.data) for packet in sent))
    numbers = [packet.pts for packet in taken]
    assert numbers == sorted(set(numbers))
    for before, after in itertools.pairwise([Packet(b"", -1, -1, 1, True), *taken]):
        assert after.is_key or after.pts == before.pts + 1


def test_an_inbox_takes_no_more_than_its_bounds() -> None:
    def put(count: int, size: int) -> bool:
        return box.put(packets(0, count, size).packets)

    box = Inbox("block", Bounds(buffer_bytes=100_000), Totals())
    assert not put(3, 0)
    assert (len(box), box.held_bytes) == (0, 0)
    assert put(1562, 64)
    for size, said in (
        (33, r"\(flow\): 100001 bytes were sent ahead"),
        (1, r"\(flow\): 1563 packets were sent ahead"),
        (100_001, r"\(too_large\): a packet has 100001 bytes"),
    ):
        with pytest.raises(BadStream, match=said):
            put(1, size)
    # Taken packets still count, until they are decoded.
    box.take()
    with pytest.raises(BadStream, match=r"\(flow\)"):
        put(1, 33)
    box.consumed(64)
    assert put(1, 33)
