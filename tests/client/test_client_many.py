"""Many images in flight: order, bounds, failures, endless and slow sources."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest
from async_fakes import refuse_bad
from both_clients import CLIENTS, Connect, Waiting
from client_fakes import FakeTransport, echo_size
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from onestream.client import BadImage, Client, ClientClosed, Tensors


async def slowly(images: Iterable[bytes]) -> AsyncIterator[bytes]:
    """A source that lets others run before each image."""
    for image in images:
        await asyncio.sleep(0)
        yield image


@pytest.mark.parametrize("connect", CLIENTS.values(), ids=CLIENTS)
@given(is_bad=st.lists(st.booleans(), max_size=40), in_flight=st.integers(1, 12), data=st.data())
def test_results_come_in_order_and_failures_stay_alone(
    is_bad: list[bool], in_flight: int, data: st.DataObject, connect: Connect
) -> None:
    slow = data.draw(st.sets(st.integers(0, 39), max_size=4))
    running, most_running, lock = 0, 0, threading.Lock()

    def answer(model: str, image: bytes) -> Tensors:
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
        if len(image) - 3 in slow:
            time.sleep(0.002)
        with lock:
            running -= 1
        return refuse_bad(model, image)

    images = [(b"bad" if bad else b"ok ") + bytes(index) for index, bad in enumerate(is_bad)]
    read = 0

    def source() -> Iterator[bytes]:
        nonlocal read
        for image in images:
            read += 1
            yield image

    waits = connect is Waiting and data.draw(st.booleans())
    with connect(transport=FakeTransport(answer)) as client:
        items = []
        for item in client.classify_many(slowly(source()) if waits else source(), in_flight=in_flight):
            items.append(item)
            assert read <= len(items) + in_flight
    assert [item.index for item in items] == list(range(len(images)))
    assert [item.source for item in items] == images
    assert [item.error is not None for item in items] == is_bad
    assert all(item.unwrap().top.class_id == len(item.source) for item in items if item.error is None)
    assert most_running <= in_flight


def test_an_endless_source_is_read_only_as_far_as_needed_and_no_more_is_sent_after_leaving(connect: Connect) -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"image"

    transport = FakeTransport()
    with connect(transport=transport) as client:
        results = client.classify_many(endless(), in_flight=4)
        assert read == 0
        for item in itertools.islice(results, 50):
            item.unwrap()
        results.close()
    assert 50 <= len(transport.inferences) <= read <= 54


def test_images_really_are_in_flight_together(connect: Connect) -> None:
    meeting = threading.Barrier(5, timeout=10)

    def answer(model: str, data: bytes) -> Tensors:
        meeting.wait()
        return echo_size(model, data)

    with connect(transport=FakeTransport(answer)) as client:
        assert len([item.unwrap() for item in client.classify_many([b"image"] * 10, in_flight=5)]) == 10


def test_a_result_does_not_wait_for_a_slow_source() -> None:
    wanted = threading.Event()

    def slow_source() -> Iterator[bytes]:
        yield b"first"
        # Gives the first image the time to be answered, as a camera would.
        deadline = time.monotonic() + PATIENCE_S
        while not transport.inferences and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        yield b"second"
        assert wanted.wait(10), "the third image was asked for before the first result was handed out"
        yield b"third"

    transport = FakeTransport()
    with Client(transport=transport) as client:
        results = client.classify_many(slow_source(), in_flight=8)
        assert next(results).source == b"first"
        wanted.set()
        assert [item.source for item in results] == [b"second", b"third"]


def test_an_error_of_the_source_comes_after_the_results_before_it(connect: Connect) -> None:
    def breaking() -> Iterator[bytes]:
        yield from (b"one", b"two")
        raise LookupError("the list of files ended badly")

    seen = []
    with connect(transport=FakeTransport()) as client, pytest.raises(LookupError, match="ended badly"):  # noqa: PT012
        for item in client.classify_many(breaking(), in_flight=8):
            seen.append(item.source)
    assert seen == [b"one", b"two"]


def test_every_failure_is_an_item_of_its_own(tmp_path: Path, connect: Connect) -> None:
    with connect(transport=FakeTransport(refuse_bad)) as client:
        *local, good, bad = client.classify_many([b"", tmp_path / "none.jpg", 7, b"good", b"bad"])
    assert [type(item.error).__name__ for item in local] == ["BadImage", "UnreadableInput", "UnsupportedInput"]
    assert good.unwrap() is good.result
    with pytest.raises(BadImage, match="as ordered"):
        bad.unwrap()


def test_a_closed_client_ends_the_iteration(connect: Connect) -> None:
    client = connect(transport=FakeTransport())
    results = client.classify_many(itertools.repeat(b"image"), in_flight=2)
    next(results)
    client.close()
    with pytest.raises(ClientClosed):
        for _ in results:
            pass
