"""How a stream goes from state to state, step by step and without threads, and what its inbox lets go."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_video_session import OPEN, Frame, OneToOne

from onestream.serving.video import inbox
from onestream.serving.video.bounds import BadStream, Bounds
from onestream.serving.video.inbox import Inbox
from onestream.serving.video.session import Session
from onestream.serving.video.stream_types import ForbiddenTransition, ResponseSink, State, Tensors, Totals
from onestream.wire.video import Close, Credit, Event, Packet, Packets

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


class Client(ResponseSink):
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def send(self, event: Event, tensors: Tensors) -> None:  # noqa: ARG002
        self.said.append(event.type)

    def end(self, event: Event | None, error: BadStream | None) -> None:  # noqa: ARG002
        self.said.append("nothing" if event is None else event.fields["code"])

    def is_gone(self) -> bool:
        return False


@dataclass
class Stream:
    """A session, with each kind of work done when a test says so; ``woken`` is who was called since the last look."""

    client: Client = field(default_factory=Client)
    decoder: Any = field(default_factory=lambda: OneToOne(delay=1))
    woken: set[str] = field(default_factory=set)
    ends: int = 0

    def __post_init__(self) -> None:
        self.session = Session(
            OPEN,
            self.decoder,
            self.client,
            bounds=Bounds(),
            wake_decoder=lambda _: self.woken.add("decoder"),
            wake_network=lambda _: self.woken.add("network"),
            on_end=lambda _: self.count_end(),
        )

    def count_end(self) -> None:
        self.ends += 1

    def send(self, message: Any) -> None:
        self.session.receive(message)

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
        """Two packets, of which the decoder keeps one back to the end."""
        self.send(Packets(tuple(Packet(b"x", n, n, 1, True) for n in range(2))))
        if state is State.RECEIVING:
            return
        self.send(Close())
        if state is State.CLOSING:
            return
        assert self.decode()
        assert self.decode()
        assert self.infer() == 1
        flush = self.session.next_packets()
        assert flush is not None
        if state is State.FLUSHING:
            return
        flush()
        if state is State.DRAINING:
            return
        assert self.infer() == 1


@pytest.mark.parametrize("state", ORDER[:-1])
def test_an_error_ends_a_stream_in_any_state_once_and_nothing_follows(state: State) -> None:
    stream = Stream()
    stream.bring_to(state)
    in_flight = stream.session.next_frames(100)
    stream.session.end(BadStream("failed", "no more"))
    said = list(stream.client.said)
    assert said[-1] == "failed"
    stream.woken.clear()
    for message in (Close(), Credit(5), Packets((Packet(b"x", 9, 9, 1, True),)), Packets(()), Close()):
        stream.send(message)
    stream.session.take_results([(slot, {"index": np.array([0])}) for slot in in_flight])
    stream.session.end(None, done=True)
    stream.session.end(BadStream("idle", "too late"))
    stream.session.tick()
    assert not stream.decode()
    assert stream.infer() == 0
    assert stream.client.said == said
    assert (stream.session.ended, stream.ends, stream.woken) == (True, 1, set())


def test_what_is_being_decoded_at_the_end_is_let_go() -> None:
    stream = Stream()
    stream.bring_to(State.RECEIVING)
    feed = stream.decoder.feed

    def end_meanwhile(packet: Packet | None) -> list[Frame]:
        stream.decoder.waiting.append(Frame(0, 0, None))
        stream.session.end(BadStream("failed", "no more"))
        stream.woken.clear()
        return feed(packet)

    stream.decoder.feed = end_meanwhile
    assert stream.decode()
    assert stream.client.said == ["opened", "failed"]
    assert stream.woken == set()
    assert stream.infer() == 0


@pytest.mark.parametrize("state", [State.CLOSING, State.FLUSHING, State.DRAINING])
@pytest.mark.parametrize("message", [Close(), Packets((Packet(b"x", 9, 9, 1, True),)), Packets(())], ids=str)
def test_after_close_nothing_may_be_closed_or_sent(state: State, message: Any) -> None:
    stream = Stream()
    stream.bring_to(state)
    stream.send(Credit(1))
    assert not stream.session.ended
    stream.send(message)
    assert stream.client.said[-1] == "bad_message"
    assert stream.ends == 1


@pytest.mark.parametrize("state", [State.FLUSHING, State.DRAINING])
def test_a_decoder_is_told_the_end_once(state: State) -> None:
    stream = Stream()
    stream.bring_to(state)
    stream.woken.clear()
    assert not stream.decode()
    stream.send(Credit(1))
    assert "decoder" not in stream.woken


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
    def packets(count: int, size: int) -> list[Packet]:
        return [Packet(bytes(size), n, n, 1, True) for n in range(count)]

    box = Inbox("block", Bounds(buffer_bytes=100_000), Totals())
    assert not box.put(packets(3, 0))
    assert (len(box), box.held_bytes) == (0, 0)
    assert box.put(packets(1562, 64))
    with pytest.raises(BadStream, match=r"\(flow\): 100001 bytes were sent ahead"):
        box.put(packets(1, 33))
    with pytest.raises(BadStream, match=r"\(flow\): 1563 packets were sent ahead"):
        box.put(packets(1, 1))
    with pytest.raises(BadStream, match=r"\(too_large\): a packet has 100001 bytes"):
        box.put(packets(1, 100_001))
    # Taken packets still count, until they are decoded.
    box.take()
    with pytest.raises(BadStream, match=r"\(flow\)"):
        box.put(packets(1, 33))
    box.consumed(64)
    assert box.put(packets(1, 33))
