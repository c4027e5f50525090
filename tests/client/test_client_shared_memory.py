"""Regions of shared memory: written in place, used again, and gone afterwards."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from async_fakes import refuse_bad
from client_fakes import FakeTransport, classification, echo_size

from onestream.client import (
    BadImage,
    CannotConnect,
    Client,
    SharedMemoryUnavailable,
    Tensors,
    TimedOut,
    UnreadableInput,
)
from onestream.client._transports.shared_memory import RegionPool

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory needs /dev/shm")


def regions_of(pid: int) -> list[Path]:
    return sorted(Path("/dev/shm").glob(f"onestream_{pid}_*"))


def own_regions() -> list[Path]:
    return regions_of(os.getpid())


def first_and_last(_model: str, data: bytes) -> Tensors:
    """Labels that tell whether the right bytes arrived."""
    return classification((f"{data[:4]!r} {data[-4:]!r}", len(data), 1.0))


@contextmanager
def sharing(
    answer: Callable[[str, bytes], Tensors] = echo_size, **server: Any
) -> Iterator[tuple[Client, FakeTransport]]:
    """A client with shared memory, of which nothing is left afterwards."""
    transport = FakeTransport(answer, **server)
    with Client(transport=transport, shared_memory=True, retries=0) as client:
        yield client, transport
    assert own_regions() == []
    assert transport.regions == {}


def test_only_the_name_of_a_region_is_sent_which_is_closed_to_other_users(tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"head" + bytes(1000) + b"tail")
    with sharing(first_and_last) as (client, transport):
        for image in (path, path.read_bytes(), path.open("rb"), np.zeros((10, 10), np.uint8)):
            top = client.classify(image).top
            request, _ = transport.inferences[-1]
            assert request.image.byte_size == top.class_id
            assert f"_{os.getpid()}_" in request.image.region_name
            if not isinstance(image, np.ndarray):
                assert top.label == "b'head' b'tail'"
        (region,) = own_regions()
        assert (stat.S_IMODE(region.stat().st_mode), region.stat().st_uid) == (0o600, os.geteuid())


def test_one_region_for_each_image_in_flight() -> None:
    meeting = threading.Barrier(4, timeout=10)

    def answer(model: str, data: bytes) -> Tensors:
        meeting.wait()
        return first_and_last(model, data)

    with sharing(answer) as (client, _):
        images = [bytes([index]) * (index + 1) for index in range(40)]
        for item in client.classify_many(images, in_flight=4):
            assert item.unwrap().top.class_id == item.index + 1
            assert item.unwrap().top.label.startswith(repr(bytes([item.index]))[:3])
        assert len(own_regions()) == 4


def test_a_larger_image_gets_a_larger_region() -> None:
    with sharing() as (client, transport):
        for size in (10, MIB, MIB + 1, 5 * MIB, 100):
            assert client.classify(bytes(size)).top.class_id == size
            assert len(transport.regions) == len(own_regions()) == 1
        assert own_regions()[0].stat().st_size == 8 * MIB


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"opens_shared_memory": False}, r"same host.*shared_memory=False"),
        ({"closes_shared_memory": True}, r"closed to callers.*--shared-memory.*shared_memory=False"),
    ],
)
def test_a_server_elsewhere_or_closed_is_told_apart_and_the_option_is_named(server: Any, words: str) -> None:
    with sharing(**server) as (client, _), pytest.raises(SharedMemoryUnavailable, match=words):
        client.classify(b"image")


def test_an_image_that_fails_leaves_its_region_usable(tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"image")
    with sharing(refuse_bad) as (client, _):
        client.classify(b"good")
        before = own_regions()
        with pytest.raises(BadImage):
            client.classify(b"bad")
        path.chmod(0)
        if not os.access(path, os.R_OK):
            with pytest.raises(UnreadableInput):
                client.classify(path)
        client.classify(b"good")
        assert own_regions() == before


@pytest.mark.parametrize("error", [TimedOut("late"), CannotConnect("gone")])
def test_a_region_that_the_server_may_still_read_is_not_written_again(error: Exception) -> None:
    def answer(model: str, data: bytes) -> Tensors:
        if data == b"slow":
            raise error
        return echo_size(model, data)

    with sharing(answer) as (client, transport):
        with pytest.raises(type(error)):
            client.classify(b"slow")
        (abandoned,) = transport.regions
        transport.regions_in_use.add(abandoned)
        client.classify(b"image")
        last = transport.inferences[-1][0].image
        assert last.region_name != abandoned
        assert abandoned in transport.regions
        assert [path.name for path in own_regions()] == [last.region_name]
        transport.regions_in_use.clear()


def test_an_unreachable_server_does_not_pile_up_regions() -> None:
    def unreachable(_model: str, _data: bytes) -> Tensors:
        raise CannotConnect("nobody there")

    with sharing(unreachable) as (client, _):
        for item in client.classify_many([b"image"] * 50, in_flight=2):
            assert isinstance(item.error, CannotConnect)
            assert len(own_regions()) <= 2


def test_memory_that_does_not_exist_is_an_error_and_not_a_crash() -> None:
    space = os.statvfs("/dev/shm")
    too_much = space.f_frsize * space.f_blocks + 1
    if too_much > 1 << 40:
        pytest.skip("/dev/shm has no limit here")

    class Huge:
        byte_size = too_much

    with (
        pytest.raises(SharedMemoryUnavailable, match="shared memory"),
        RegionPool(FakeTransport()).filled(Huge(), timeout_s=1),  # type: ignore[arg-type]
    ):
        pass
    assert own_regions() == []


@pytest.mark.parametrize(
    "ending", ["", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", "client.close()"]
)
def test_nothing_stays_behind_when_the_process_ends(ending: str) -> None:
    script = f"""
        import os, pathlib, signal, sys, time
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from async_fakes import refuse_bad
from client_fakes import FakeTransport
        from onestream.client import Client
        client = Client(transport=FakeTransport(), shared_memory=True)
        for item in client.classify_many([b"image"] * 10, in_flight=3):
            item.unwrap()
        assert list(pathlib.Path("/dev/shm").glob(f"onestream_{{os.getpid()}}_*"))
        {ending}
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.PIPE, text=True)
    _, complaints = process.communicate(timeout=60)
    assert regions_of(process.pid) == []
    assert "leaked" not in complaints
    assert "AssertionError" not in complaints


def test_a_forked_child_leaves_the_parents_regions_alone() -> None:
    with sharing() as (client, _):
        client.classify(b"image")
        before = own_regions()
        child = os.fork()
        if child == 0:
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert own_regions() == before
        assert client.classify(b"image").top.class_id == 5
