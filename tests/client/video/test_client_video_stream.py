"""The stream of a client against a server that keeps the protocol and watches that the client does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from client_fakes import detections, reading
from fake_server import Behaviour, FakeServer
from patience import NEVER_S, ended, in_a_loop, threads_named, wait_until
from stream_fakes import collect, endless, packets, source

from onestream.client import (
    BadStream,
    CannotConnect,
    Client,
    ClientClosed,
    ModelNotFound,
    OnestreamError,
    ServerFailed,
    ServerUnavailable,
    Tensors,
    TimedOut,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from onestream.client.video import Reconnect, interleave
from onestream.wire.video import Packet


@pytest.mark.parametrize("together", [1, 7])
def test_every_frame_in_order_with_what_is_known_of_it(server: FakeServer, client: Client, together: int) -> None:
    server.behaviour.together = together
    with client.stream(source(packets(300))) as results:
        assert results.format.codec == "h264"
        frames = list(results)
    assert [frame.frame_index for frame in frames] == list(range(300))
    assert [frame.pts for frame in frames] == list(range(300))
    assert frames[75].pts_seconds == 3.0
    assert [frame.result.top.label for frame in frames] == [f"class {number}" for number in range(300)]
    assert frames[7].tensors["class_ids"].tolist() == [7, 1]
    assert all(0 < frame.latency_ms < 5000 for frame in frames)
    assert (results.decoded, results.dropped, results.concealed) == (300, 30, 15)
    assert results.ended_reason == "done"
    assert results.error is None
    (seen,) = server.streams
    assert seen.packets == list(packets(300))
    assert seen.closed
    wait_until(lambda: seen.over, "the call ends")
    assert seen.hung_up
    assert not seen.cancelled


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("window", [1, 2, 16])
def test_never_more_bytes_or_results_than_allowed(
    server: FakeServer, client: Client, window: int, together: int
) -> None:
    server.behaviour.buffer_bytes, server.behaviour.together = 5000, together
    with client.stream(source(packets(100)), results=window) as results:
        assert len(list(results)) == 100
    # The server itself notes a fault where the bounds are passed.
    assert 4000 <= server.streams[0].most_unconsumed_bytes <= 5000
    assert server.streams[0].opened.results == window


def test_a_slow_caller_holds_the_source_back(server: FakeServer, client: Client) -> None:
    server.behaviour.buffer_bytes = 5000
    read = 0

    def counted() -> Iterator[Packet]:
        nonlocal read
        for packet in packets(5000):
            read += 1
            yield packet

    with client.stream(source(counted()), results=4) as results:
        first = next(results)
        time.sleep(0.3)
        seen = server.streams[0]
        assert first.frame_index == 0
        # One was taken, and its credit may already be on its way.
        assert seen.sent <= 5
        # What the server got, and at most 1 MiB that was read ahead.
        assert len(seen.packets) <= 5 + 5
        assert read <= len(seen.packets) + 1024 * 1024 // 1000 + 2
        assert next(results).frame_index == 1


IN_LOOP = pytest.mark.parametrize("in_event_loop", [False, True])


@IN_LOOP
def test_closing_early_cancels_the_call(server: FakeServer, client: Client, in_event_loop: bool) -> None:
    results = client.stream(endless())
    found, error = collect(results, most=1, in_event_loop=in_event_loop)
    assert ([frame.frame_index for frame in found], error) == ([0], None)
    assert results.ended_reason == "closed"
    assert results.finished
    assert list(results) == []
    wait_until(lambda: server.streams[0].cancelled, "the server sees the cancel")


def test_no_thread_stays_behind(client: Client) -> None:
    list(client.stream(source(packets(3))))
    before = threads_named("onestream-stream-")
    for _ in range(2):
        with client.stream(source(packets(100))) as results:
            next(results)
        with client.stream(source(packets(3))) as results:
            assert len(list(results)) == 3
    gc.collect()
    wait_until(lambda: threads_named("onestream-stream-") <= before, "threads end")


def in_no_place(number: int) -> Tensors:
    return detections(*[("cat", 17, 0.9, (0, 0, float("nan"), 9))] * (number == 5))


def unreadable(number: int) -> Tensors:
    tensors = reading(*[("", 0.9, ((0, 0), (9, 0), (9, 9), (0, 9)))] * (number == 4))
    tensors["texts"][:] = b"\xff"
    return tensors


@IN_LOOP
@pytest.mark.parametrize(
    ("behaviour", "count", "kind", "message"),
    [
        (
            Behaviour(refuse=("too_many_streams", "32 streams are open")), 0,
            BadStream, r"^bad stream \(too_many_streams\): 32 streams are open$",
        ),
        (Behaviour(fail_after=7), 7, BadStream, r"^bad stream \(failed\): the network failed$"),
        (Behaviour(fail_after=2, failure=(grpc.StatusCode.INTERNAL, "out of memory")), 2, ServerFailed, "out of mem"),
        # The end is no normal one, since the client did not ask for it.
        (Behaviour(end_after=5), 5, BadStream, r"\(ended\).*the server is tired"),
        (Behaviour(silent=True), 0, TimedOut, "did nothing for"),
        (Behaviour(silent_after=5), 5, TimedOut, "did nothing for"),
        (Behaviour(silent_after=5, talks="consumed"), 5, TimedOut, "did nothing for"),
        (Behaviour(silent_after=5, talks="results"), 5, TimedOut, "did nothing for"),
        (Behaviour(silent_after=5, talks="opened"), 5, UnexpectedResponse, "'opened' of a stream that is open already"),
        (Behaviour(before_opened="consumed"), 0, UnexpectedResponse, "'consumed' of a stream that is not open yet"),
        (Behaviour(before_opened="results"), 0, UnexpectedResponse, "'results' of a stream that is not open yet"),
        (Behaviour(overstates=True), 0, UnexpectedResponse, "1048576 bytes are consumed, of 0 sent"),
        # Errors within the conversation have no status.
        (Behaviour(error_message="Request for unknown model: 'a_video' is not found"), 0, ModelNotFound, "unknown"),
        (Behaviour(error_message="Stub process 'a_video_0_0' is not healthy."), 0, ServerUnavailable, "Stub process"),
        (Behaviour(sees=in_no_place), 5, UnexpectedResponse, "finite"),
        (Behaviour(sees=unreadable), 4, UnexpectedResponse, "no UTF-8"),
    ],
)  # fmt: skip
def test_what_ends_a_stream_comes_after_the_results_before_it(
    server: FakeServer,
    client: Client,
    behaviour: Behaviour,
    count: int,
    kind: type[OnestreamError],
    message: str,
    in_event_loop: bool,
) -> None:
    server.behaviour = behaviour
    results = client.stream(endless(), timeout_s=1.0 if kind is TimedOut else None)
    found, error = collect(results, in_event_loop=in_event_loop)
    assert [frame.frame_index for frame in found] == list(range(count))
    assert isinstance(error, kind)
    assert re.search(message, str(error))
    if isinstance(error, BadStream):
        assert str(error) == f"bad stream ({error.code}): {error.reason}"
    assert results.error is error
    assert results.ended_reason == str(error)


def test_a_refusal_does_not_wait_for_the_source(server: FakeServer, client: Client) -> None:
    server.behaviour.refuse = ("unsupported_codec", "theora")
    never = threading.Event()

    def blocked() -> Iterator[Packet]:
        never.wait()
        yield from ()

    try:
        with pytest.raises(BadStream, match="theora"):
            ended(lambda: next(client.stream(source(blocked()))))
    finally:
        never.set()


def test_a_server_that_is_killed_or_not_there() -> None:
    script = "import fake_server as f, time; print(f.FakeServer().port, flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={"PYTHONPATH": ":".join(sys.path)}
    )
    with process, Client(f"127.0.0.1:{int(process.stdout.readline())}") as client:
        results = client.stream(endless())
        next(results)
        process.kill()
        assert isinstance(collect(results)[1], CannotConnect)
        assert isinstance(collect(client.stream(source(packets(1))))[1], CannotConnect)


def test_a_caller_that_rests_or_an_idle_source_is_no_silence(client: Client) -> None:
    with client.stream(source(packets(100, size=4000)), results=2, timeout_s=0.2) as results:
        next(results)
        time.sleep(0.6)
        assert len(list(results)) == 99

    def now_and_then() -> Iterator[Packet]:
        for packet in packets(3):
            time.sleep(0.4)
            yield packet

    with client.stream(source(now_and_then()), timeout_s=0.2) as results:
        assert len(list(results)) == 3


def test_more_results_than_asked_for(server: FakeServer, client: Client) -> None:
    server.behaviour.too_many_results = True
    results = client.stream(source(packets(50)), results=2).open()
    wait_until(lambda: results.error is not None, "the client notes it")
    _, error = collect(results)
    assert isinstance(error, UnexpectedResponse)
    assert "more than 2 results" in str(error)


def test_a_packet_that_never_fits(client: Client) -> None:
    with pytest.raises(BadStream, match="a packet has 100000 bytes; the server holds 65536") as raised:
        list(client.stream(source(packets(3, size=100_000))))
    assert raised.value.code == "too_large"


def test_closing_the_client_ends_its_streams(server: FakeServer) -> None:
    with Client(server.url) as client:
        results = client.stream(endless())
        next(results)
    for closed in (results, client.stream(source(packets(1)))):
        assert isinstance(collect(closed)[1], ClientClosed)


def test_live_streams_drop_whole_groups_of_pictures(server: FakeServer, client: Client) -> None:
    server.behaviour.buffer_bytes = 3000
    server.behaviour.frame_s = 0.02

    def camera() -> Iterator[Packet]:
        for packet in packets(300):
            time.sleep(0.005)
            yield packet

    with client.stream(source(camera(), live=True)) as results:
        frames = list(results)
    seen = server.streams[0]
    assert seen.opened.mode == "drop_oldest"
    arrived = [packet.pts for packet in seen.packets]
    assert results.totals.unsent == 300 - len(arrived) > 0
    assert results.dropped == results.totals.unsent + seen.sent // 10
    assert len(frames) == len(arrived)
    # Behind a hole comes a key packet, every tenth.
    for before, after in itertools.pairwise(arrived):
        assert after == before + 1 or after % 10 == 0
    # What is sent has waited for at most a second, and then for what the server holds.
    assert max(frame.latency_ms for frame in frames) < 1000 + 500


def test_latency_counts_from_handing_over(server: FakeServer, client: Client) -> None:
    server.behaviour.frame_s = 0.05
    with client.stream(source(packets(3))) as results:
        first, second, third = results
    assert 50 <= first.latency_ms < second.latency_ms < third.latency_ms < 1000
    assert first.server_latency_ms == 1.5


def test_interleave(client: Client) -> None:
    def broken() -> Iterator[Packet]:
        yield from packets(3)
        raise ZeroDivisionError("unplugged")

    streams = [client.stream(source(items)) for items in (packets(60), broken(), packets(40), iter([]))]
    items = list(interleave(streams))
    assert all(item.stream is streams[item.index] for item in items)
    got = [[item.unwrap().frame_index for item in items if item.index == n and item.error is None] for n in range(4)]
    assert got == [list(range(60)), [0, 1, 2], list(range(40)), []]
    ((broken_at, error),) = ((item.index, item.error) for item in items if item.error is not None)
    assert (broken_at, type(error)) == (1, UnreadableInput)
    assert "ZeroDivisionError: unplugged" in str(error)
    assert streams[3].ended_reason == "done"


def test_interleave_finds_the_silent_one_among_others(server: FakeServer, client: Client) -> None:
    server.behaviour.frame_s = 0.01
    with FakeServer(Behaviour(silent_after=2)) as dead, Client(dead.url) as other:
        streams = [other.stream(endless(), timeout_s=0.5), client.stream(endless())]
        with contextlib.closing(interleave(streams)) as items:
            first = next(item for item in itertools.islice(items, 5000) if item.error is not None)
        assert (first.index, type(first.error)) == (0, TimedOut)


def test_leaving_interleave_closes_all(server: FakeServer, client: Client) -> None:
    streams = [client.stream(endless()) for _ in range(3)]
    items = interleave(streams)
    next(items)
    items.close()
    assert [stream.ended_reason for stream in streams] == ["closed"] * 3
    wait_until(lambda: all(seen.over for seen in server.streams), "all calls end")


def test_options_are_checked(client: Client) -> None:
    with pytest.raises(ValueError, match="mode='fast', expected 'block' or 'drop_oldest'"):
        client.stream(source([]), mode="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="results=0"):
        client.stream(source([]), results=0)
    with pytest.raises(ValueError, match="cannot be connected to again"):
        client.stream(source([]), reconnect=Reconnect())
    with pytest.raises(UnsupportedInput, match="got int as a video source"):
        client.stream(7)  # type: ignore[arg-type]
    with Client("http://127.0.0.1:8000") as http, pytest.raises(ValueError, match="video streams go over gRPC"):
        http.stream(source([]))


def test_the_server_is_not_needed_to_close(server: FakeServer) -> None:
    server.behaviour = Behaviour(silent=True)
    with Client(server.url, timeout_s=NEVER_S) as client:
        results = client.stream(source(packets(1)), timeout_s=NEVER_S)
        assert results.poll() is None
        ended(results.close)


@in_a_loop
async def test_many_streams_and_the_loop_goes_on(server: FakeServer, client: Client) -> None:
    server.behaviour.frame_s = 0.005
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def one(count: int) -> list[int]:
        async with client.stream(source(packets(count))) as results:
            return [frame.frame_index async for frame in results]

    ticking = asyncio.create_task(tick())
    found = await asyncio.gather(*(one(count) for count in range(20, 28)))
    ticking.cancel()
    assert found == [list(range(count)) for count in range(20, 28)]
    assert len({seen.sequence_id for seen in server.streams}) == 8
    # Twenty frames of 5 ms: a loop that was blocked meanwhile would have counted nothing.
    assert ticks >= 3


@in_a_loop
async def test_a_wait_can_be_given_up_and_taken_up_again(server: FakeServer, client: Client) -> None:
    server.behaviour.frame_s = 0.3
    async with client.stream(source(packets(2))) as results:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(results), 0.05)
        assert (await anext(results)).frame_index == 0
