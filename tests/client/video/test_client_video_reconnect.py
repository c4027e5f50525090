"""Live streams whose source or server goes away and comes back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_server import Behaviour, FakeServer
from patience import NEVER_S, ended
from stream_fakes import collect, source

from onestream.client import (
    BadImage,
    BadStream,
    CannotConnect,
    Client,
    OnestreamError,
    ServerUnavailable,
    UnreadableInput,
)
from onestream.client.video import NEVER, Reconnect
from onestream.client.video.driver import Timeline
from onestream.client.video.reconnect import may_pass
from onestream.client.video.sources import Feed
from onestream.wire.video import Packet

SOON = Reconnect(attempts=5, first_s=0.02, longest_s=0.1)


@dataclass
class Camera:
    """Each connection does what its plan says: packets and then the end, or an error."""

    plan: list[Callable[[], Feed]]
    connections: list[float] = field(default_factory=list)
    name: str = "camera"
    live: bool = True
    can_reconnect: bool = True

    def connect(self) -> Feed:
        self.connections.append(time.monotonic())
        return (self.plan.pop(0) if self.plan else refused)()


def gives(count: int, *, endless: bool = True) -> Callable[[], Feed]:
    """A connection with so many frames; of one that is endless the end is a loss."""

    def frames() -> Iterator[Packet]:
        for number in range(count):
            time.sleep(0.002)
            yield Packet(b"frame", number, number, 1, True)

    def connect() -> Feed:
        feed: Any = source(frames()).connect()
        feed.endless = endless
        return feed

    return connect


def refused() -> Feed:
    raise UnreadableInput("camera: the video cannot be opened: Connection refused")


def test_numbers_go_on_and_the_gap_is_reported(server: FakeServer, client: Client) -> None:
    camera = Camera([gives(30), refused, refused, gives(20, endless=False)])
    results = client.stream(camera, reconnect=SOON)
    found, error = collect(results)
    assert error is None
    assert [frame.frame_index for frame in found] == list(range(50))
    assert [frame.pts for frame in found] == [*range(30), *range(20)]
    assert [frame.frame_index for frame in found if frame.after_gap] == [30]
    (gap,) = results.gaps
    assert gap.frame_index == 30
    assert gap.reason == "camera: the source ended the connection"
    assert gap.seconds > 0.02 * 0.75
    assert (results.decoded, results.concealed) == (50, 2)
    assert results.ended_reason == "done"
    first, second = server.streams
    assert first.sequence_id != second.sequence_id
    # By this machine's clock: 40 ms between frames, in both parts; and the gap between them.
    steps = [after.pts_seconds - before.pts_seconds for before, after in itertools.pairwise(found)]  # type: ignore[operator]
    assert steps.pop(29) == pytest.approx(gap.seconds)
    assert steps == pytest.approx([0.04] * 48)


@pytest.mark.parametrize(
    ("plan", "reconnect", "attempts", "why"),
    [
        ([], SOON, 0, "Connection refused"),
        ([10, 10], NEVER, 0, "the source ended the connection"),
        ([10], SOON, SOON.attempts, "Connection refused"),
    ],
    ids=["never open", "not asked to", "no more attempts"],
)
def test_it_gives_up(client: Client, plan: list[int], reconnect: Reconnect, attempts: int, why: str) -> None:
    camera = Camera([gives(count) for count in plan])
    found, error = collect(client.stream(camera, reconnect=reconnect))
    assert len(found) == sum(plan[:1])
    assert isinstance(error, UnreadableInput)
    assert why in str(error)
    assert len(camera.connections) == 1 + attempts
    waits = [after - before for before, after in itertools.pairwise(camera.connections[1:])]
    # Doubling from 20 ms up to 100, less a quarter; the machine may be slower.
    assert all(wait >= least * 0.75 for wait, least in zip(waits, (0.04, 0.08, 0.1, 0.1), strict=False))


def test_the_server_comes_back(server: FakeServer, client: Client) -> None:
    camera = Camera([gives(5000), gives(5000)])
    results = client.stream(camera, reconnect=Reconnect(attempts=50, first_s=0.05, longest_s=0.1))
    with results:
        first = next(results)
        server.stop()
        with FakeServer(port=server.port):
            for frame in results:
                if frame.after_gap:
                    break
    assert first.frame_index == 0
    assert frame.pts < 5
    assert frame.frame_index == results.gaps[0].frame_index > 0


def test_a_refusal_that_stays_is_final(server: FakeServer, client: Client) -> None:
    camera = Camera([gives(5000)] * 10)
    server.behaviour.fail_after = 3
    server.behaviour.failure = ("too_large", "4k")
    found, error = collect(client.stream(camera, reconnect=SOON))
    assert [frame.frame_index for frame in found] == [0, 1, 2]
    assert isinstance(error, BadStream)
    assert len(camera.connections) == 1


def test_a_full_server_after_a_loss_is_tried_again(server: FakeServer, client: Client) -> None:
    free, full = server.behaviour, Behaviour(refuse=("too_many_streams", "32 streams are open"))

    def then(behaviour: Behaviour, feed: Callable[[], Feed]) -> Feed:
        server.behaviour = behaviour
        return feed()

    plan = [gives(10), lambda: then(full, gives(10)), lambda: then(free, gives(10, endless=False))]
    found, error = collect(client.stream(Camera(plan), reconnect=SOON))
    assert error is None
    assert [frame.frame_index for frame in found] == list(range(20))


def test_closing_ends_the_attempts(client: Client) -> None:
    results = client.stream(Camera([gives(1)]), reconnect=Reconnect(attempts=9, first_s=NEVER_S, longest_s=NEVER_S))
    with results:
        next(results)
        time.sleep(0.2)
        ended(results.close)


@pytest.mark.parametrize(
    ("failure", "passes"),
    [
        (UnreadableInput("gone"), True),
        (CannotConnect("gone"), True),
        (ServerUnavailable("starting", status="UNAVAILABLE"), True),
        (BadStream("too_many_streams", ""), True),
        (BadStream("failed", ""), True),
        (BadStream("unsupported_codec", ""), False),
        (BadStream("idle", ""), False),
        (BadImage("corrupt", ""), False),
    ],
)
def test_what_may_pass(failure: OnestreamError, passes: bool) -> None:
    assert may_pass(failure) == passes
    assert (Reconnect().delay_s(failure, 0) is not None) == passes


def test_the_wait_doubles_and_ends() -> None:
    options = Reconnect(attempts=4, first_s=1.0, longest_s=3.0)
    for attempt, middle in enumerate((1.0, 2.0, 3.0, 3.0)):
        delays = [options.delay_s(UnreadableInput("gone"), attempt) for _ in range(100)]
        assert all(delay is not None and 0.75 * middle <= delay <= 1.25 * middle for delay in delays)
        assert len(set(delays)) > 1
    assert options.delay_s(UnreadableInput("gone"), 4) is None
    with pytest.raises(ValueError, match="attempts=-1"):
        Reconnect(attempts=-1)
    with pytest.raises(ValueError, match="first_s=2"):
        Reconnect(first_s=2, longest_s=1)


def test_a_gap_begins_with_its_first_loss() -> None:
    now = 100.0
    timeline = Timeline(lambda: now)
    timeline.connected()
    assert timeline.place(0, 5.0) == (0, 5.0, False)
    assert timeline.place(4, 6.0) == (4, 6.0, False)
    timeline.lost("the first", decoded=8)
    now = 101.0
    timeline.lost("the second", decoded=0)
    now = 103.0
    timeline.connected()
    (gap,) = timeline.gaps
    assert (gap.frame_index, gap.seconds, gap.reason) == (8, 3.0, "the first")
    assert timeline.place(0, 50.0) == (8, 9.0, True)
    assert timeline.place(2, None) == (10, None, False)
    assert timeline.place(3, 50.5) == (11, 9.5, False)
