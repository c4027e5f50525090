"""What goes to the server when, without a server."""

from __future__ import annotations

import threading
import time

import pytest
from patience import PATIENCE_S

from onestream.client.video.flow import Outbox
from onestream.wire.video import Close, Credit, Mode, Packet, Packets


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def packet(number: int, *, size: int = 100, is_key: bool = False) -> Packet:
    return Packet(bytes(size), number, number, 1, is_key)


def outbox(mode: Mode = "drop_oldest", **options: object) -> tuple[Outbox, Clock, list[tuple[int | None, float]]]:
    clock, sent = Clock(), []
    box = Outbox(
        mode,
        clock=clock,
        on_sent=lambda packet, at_s: sent.append((packet.pts, at_s)),
        **options,  # type: ignore[arg-type]
    )
    return box, clock, sent


def numbers(message: object) -> list[int | None]:
    return [packet.pts for packet in message.packets]


def test_nothing_but_what_fits_goes_out() -> None:
    box, _, _ = outbox()
    for number in range(5):
        box.put(packet(number))
    box.opened(250)
    assert numbers(box.next_message()) == [0, 1]
    assert box.waits_since() is not None
    box.consumed(100)
    assert box.waits_since() is None
    assert numbers(box.next_message()) == [2]
    box.finish()
    # An old report changes nothing.
    box.consumed(50)
    assert box.waits_since() is not None
    box.consumed(300)
    assert numbers(box.next_message()) == [3, 4]
    assert isinstance(box.next_message(), Close)
    assert box.waits_since() is not None
    box.ended()
    assert box.next_message() is None


def test_credit_goes_with_packets_and_where_there_are_none_alone_in_steps() -> None:
    box, _, _ = outbox(credit_step=3)
    box.opened(250)
    box.give(2)
    box.put(packet(0))
    box.put(packet(1))
    assert box.next_message() == Packets((packet(0), packet(1)), 2)
    # There is no room for this one.
    box.put(packet(2))
    box.give(2)
    box.give(2)
    assert box.next_message() == Credit(4)
    box.consumed(200)
    assert box.next_message() == Packets((packet(2),), 0)
    box.finish()
    assert isinstance(box.next_message(), Close)
    # The last results need credit, too.
    box.give(3)
    assert box.next_message() == Credit(3)


def test_what_waits_too_long_is_dropped_up_to_the_next_key() -> None:
    box, clock, sent = outbox(max_wait_s=1.0)
    box.opened(250)
    box.put(packet(0, is_key=True))
    box.put(packet(1))
    assert numbers(box.next_message()) == [0, 1]
    for number in range(2, 8):
        clock.now = number / 10
        box.put(packet(number, is_key=number == 5))
    clock.now = 1.25
    box.put(packet(8))
    # Packet 2 has waited longer than a second. Without it 3 and 4 cannot be decoded.
    assert box.dropped == 3
    box.consumed(200)
    assert numbers(box.next_message()) == [5, 6]
    assert sent[2:] == [(5, 0.5), (6, 0.6)]


def test_without_a_key_in_sight_all_is_dropped_until_one_comes() -> None:
    box, clock, _ = outbox(max_wait_s=1.0)
    box.opened(100)
    box.put(packet(0, is_key=True))
    assert numbers(box.next_message()) == [0]
    box.put(packet(1))
    clock.now = 1.5
    box.put(packet(2))
    box.put(packet(3))
    assert box.dropped == 3
    box.put(packet(4, is_key=True))
    box.consumed(100)
    assert numbers(box.next_message()) == [4]
    assert box.dropped == 3


def test_what_got_old_is_not_sent_when_room_comes() -> None:
    box, clock, _ = outbox(max_wait_s=1.0)
    box.put(packet(0, is_key=True))
    box.put(packet(1))
    clock.now = 0.8
    box.put(packet(2, is_key=True))
    clock.now = 1.7
    box.opened(1000)
    assert numbers(box.next_message()) == [2]


def test_block_waits_instead() -> None:
    box, clock, sent = outbox("block", ahead_bytes=250)
    box.opened(100)
    done = threading.Event()

    def fill() -> None:
        for number in range(4):
            assert box.put(packet(number))
        done.set()

    threading.Thread(target=fill, daemon=True).start()
    assert not done.wait(0.1)
    clock.now = 60.0
    assert numbers(box.next_message()) == [0]
    assert done.wait(2)
    box.consumed(100)
    assert numbers(box.next_message()) == [1]
    assert box.dropped == 0
    # The latency of a file's frame begins when it is sent.
    assert sent == [(0, 60.0), (1, 60.0)]


def test_closing_lets_everybody_go() -> None:
    box, _, _ = outbox("block", ahead_bytes=1)
    box.opened(1000)
    ends: list[object] = []
    box.put(packet(0))
    assert numbers(box.next_message()) == [0]
    taker = threading.Thread(target=lambda: ends.append(box.next_message()))
    taker.start()
    box.close()
    taker.join(2)
    assert ends == [None]
    assert not box.put(packet(1))


def test_large_packets_go_alone_and_small_ones_together() -> None:
    box, _, _ = outbox()
    box.opened(10_000_000)
    for number in range(3):
        box.put(packet(number, size=400_000))
    for number in range(3, 203):
        box.put(packet(number, size=10))
    assert [len(numbers(box.next_message())) for _ in range(5)] == [2, 64, 64, 64, 9]


def test_packets_of_a_live_stream_go_out_together_where_answers_take_long() -> None:
    box, clock, _ = outbox()
    box.opened(10_000)
    box.answered(0.4)
    box.put(packet(0, is_key=True))
    assert numbers(box.next_message()) == [0]
    box.put(packet(1))
    sent = threading.Event()
    taken: list[object] = []

    def take() -> None:
        taken.append(box.next_message())
        sent.set()

    threading.Thread(target=take, daemon=True).start()
    assert not sent.wait(0.1)
    box.put(packet(2))
    box.put(packet(3))
    clock.now = 0.1
    assert sent.wait(PATIENCE_S)
    assert numbers(taken[0]) == [1, 2, 3]
    box.put(packet(4))
    box.finish()
    assert numbers(box.next_message()) == [4]
    assert isinstance(box.next_message(), Close)


def test_packets_go_out_at_once_where_answers_are_quick_and_of_files_always() -> None:
    for mode, latency_s in (("drop_oldest", 0.0), ("block", 10.0)):
        box, _, _ = outbox(mode)  # type: ignore[arg-type]
        box.opened(10_000)
        box.answered(latency_s)
        for number in range(3):
            box.put(packet(number))
            assert numbers(box.next_message()) == [number]


@pytest.mark.parametrize("what", ["opened", "consumed", "give", "finish", "put", "ended"])
def test_a_sender_that_waits_is_woken_by_whatever_it_can_act_on(what: str) -> None:
    box = Outbox("block", credit_step=2)
    if what != "opened":
        box.opened(100)
    if what in ("opened", "consumed"):
        box.put(packet(0))
    if what == "consumed":
        assert numbers(box.next_message()) == [0]
        box.put(packet(1))
    taken: list[object] = []
    sender = threading.Thread(target=lambda: taken.append(box.next_message()), daemon=True)
    sender.start()
    time.sleep(0.1)
    assert not taken
    given = {"opened": (100,), "consumed": (100,), "give": (2,), "put": (packet(0),)}
    getattr(box, what)(*given.get(what, ()))
    # It would wake by itself only after a second, or never.
    sender.join(0.5)
    assert not sender.is_alive()
    expected = {"give": Credit(2), "finish": Close(), "ended": None}
    number = 1 if what == "consumed" else 0
    assert taken == [expected.get(what, Packets((packet(number),)))]
    box.close()
