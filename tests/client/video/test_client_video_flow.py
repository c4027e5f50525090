"""What goes to the server when, without a server."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from patience import PATIENCE_S

from onestream.client.video.flow import Outbox
from onestream.wire.video import Close, Credit, Mode, Packet, Packets


def packet(number: int, *, size: int = 100, is_key: bool = False) -> Packet:
    return Packet(bytes(size), number, number, 1, is_key)


class Box(Outbox):
    """An outbox with room for ``room`` bytes, by a clock that the test sets; packets are known by their numbers."""

    def __init__(self, mode: Mode = "drop_oldest", *, room: int | None = None, **options: Any) -> None:
        self.now, self.sent = 0.0, []
        super().__init__(mode, clock=lambda: self.now, on_sent=self._note, **options)
        if room is not None:
            self.opened(room)

    def _note(self, sent: Packet, at_s: float) -> None:
        self.sent.append((sent.pts, at_s))

    def puts(self, *numbers: int, key: int | None = None, size: int = 100) -> None:
        for number in numbers:
            self.put(packet(number, size=size, is_key=number == key))

    def takes(self) -> list[int | None]:
        """The numbers of the packets in the next message."""
        return [one.pts for one in self.next_message().packets]


def test_nothing_but_what_fits_goes_out() -> None:
    box = Box()
    box.puts(*range(5))
    box.opened(250)
    assert box.takes() == [0, 1]
    assert box.waits_since() is not None
    box.consumed(100)
    assert box.waits_since() is None
    assert box.takes() == [2]
    box.finish()
    # An old report changes nothing.
    box.consumed(50)
    assert box.waits_since() is not None
    box.consumed(300)
    assert box.takes() == [3, 4]
    assert isinstance(box.next_message(), Close)
    assert box.waits_since() is not None
    box.ended()
    assert box.next_message() is None


def test_credit_goes_with_packets_and_where_there_are_none_alone_in_steps() -> None:
    box = Box(room=250, credit_step=3)
    box.give(2)
    box.puts(0, 1)
    assert box.next_message() == Packets((packet(0), packet(1)), 2)
    # There is no room for this one.
    box.puts(2)
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
    box = Box(room=250, max_wait_s=1.0)
    box.puts(0, 1, key=0)
    assert box.takes() == [0, 1]
    for number in range(2, 8):
        box.now = number / 10
        box.puts(number, key=5)
    box.now = 1.25
    box.puts(8)
    # Packet 2 has waited longer than a second. Without it 3 and 4 cannot be decoded.
    assert box.dropped == 3
    box.consumed(200)
    assert box.takes() == [5, 6]
    assert box.sent[2:] == [(5, 0.5), (6, 0.6)]


def test_without_a_key_in_sight_all_is_dropped_until_one_comes() -> None:
    box = Box(room=100, max_wait_s=1.0)
    box.puts(0, key=0)
    assert box.takes() == [0]
    box.puts(1)
    box.now = 1.5
    box.puts(2, 3)
    assert box.dropped == 3
    box.puts(4, key=4)
    box.consumed(100)
    assert box.takes() == [4]
    assert box.dropped == 3


def test_what_got_old_is_not_sent_when_room_comes() -> None:
    box = Box(max_wait_s=1.0)
    box.puts(0, 1, key=0)
    box.now = 0.8
    box.puts(2, key=2)
    box.now = 1.7
    box.opened(1000)
    assert box.takes() == [2]


def test_block_waits_instead() -> None:
    box = Box("block", room=100, ahead_bytes=250)
    done = threading.Event()

    def fill() -> None:
        assert all(box.put(packet(number)) for number in range(4))
        done.set()

    threading.Thread(target=fill, daemon=True).start()
    assert not done.wait(0.1)
    box.now = 60.0
    assert box.takes() == [0]
    assert done.wait(2)
    box.consumed(100)
    assert box.takes() == [1]
    assert box.dropped == 0
    # The latency of a file's frame begins when it is sent.
    assert box.sent == [(0, 60.0), (1, 60.0)]


def test_closing_lets_everybody_go() -> None:
    box = Box("block", room=1000, ahead_bytes=1)
    ends: list[object] = []
    box.puts(0)
    assert box.takes() == [0]
    taker = threading.Thread(target=lambda: ends.append(box.next_message()))
    taker.start()
    box.close()
    taker.join(2)
    assert ends == [None]
    assert not box.put(packet(1))


def test_large_packets_go_alone_and_small_ones_together() -> None:
    box = Box(room=10_000_000)
    box.puts(*range(3), size=400_000)
    box.puts(*range(3, 203), size=10)
    assert [len(box.takes()) for _ in range(5)] == [2, 64, 64, 64, 9]


def test_packets_of_a_live_stream_go_out_together_where_answers_take_long() -> None:
    box = Box(room=10_000)
    box.answered(0.4)
    box.puts(0, key=0)
    assert box.takes() == [0]
    box.puts(1)
    taken: list[object] = []
    taker = threading.Thread(target=lambda: taken.append(box.takes()), daemon=True)
    taker.start()
    taker.join(0.1)
    assert not taken
    box.puts(2, 3)
    box.now = 0.1
    taker.join(PATIENCE_S)
    assert taken == [[1, 2, 3]]
    box.puts(4)
    box.finish()
    assert box.takes() == [4]
    assert isinstance(box.next_message(), Close)


@pytest.mark.parametrize(("mode", "latency_s"), [("drop_oldest", 0.0), ("block", 10.0)])
def test_packets_go_out_at_once_where_answers_are_quick_and_of_files_always(mode: Mode, latency_s: float) -> None:
    box = Box(mode, room=10_000)
    box.answered(latency_s)
    for number in range(3):
        box.puts(number)
        assert box.takes() == [number]


@pytest.mark.parametrize(
    ("what", "given", "expected"),
    [
        ("opened", (100,), Packets((packet(0),))),
        ("consumed", (100,), Packets((packet(1),))),
        ("give", (2,), Credit(2)),
        ("finish", (), Close()),
        ("put", (packet(0),), Packets((packet(0),))),
        ("ended", (), None),
    ],
)
def test_a_sender_that_waits_is_woken_by_whatever_it_can_act_on(
    what: str, given: tuple[Any, ...], expected: Any
) -> None:
    box = Box("block", room=None if what == "opened" else 100, credit_step=2)
    if what in ("opened", "consumed"):
        box.puts(0)
    if what == "consumed":
        assert box.takes() == [0]
        box.puts(1)
    taken: list[object] = []
    sender = threading.Thread(target=lambda: taken.append(box.next_message()), daemon=True)
    sender.start()
    time.sleep(0.1)
    assert not taken
    getattr(box, what)(*given)
    # It would wake by itself only after a second, or never.
    sender.join(0.5)
    assert not sender.is_alive()
    assert taken == [expected]
    box.close()
