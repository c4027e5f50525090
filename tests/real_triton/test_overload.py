"""More than a server can do: refusals at once, priorities, deadlines, and streams that go on, on a real Triton."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from clip_files import write_video
from networks import slow
from patience import wait_until
from shared_server import SharedServer
from streamed import streamed

from onestream.client import CannotConnect, Client, OnestreamError, Priority, ServerOverloaded, TimedOut

ROOT = Path(__file__).parents[2]
PHOTO = (ROOT / "examples" / "photos" / "coffee.jpg").read_bytes()
FORMS = ("overloaded", "overloaded_fused")
QUEUE = 12


# On a busy machine a request may wait for long; none is refused for that here.
SERVING = {"max_batch_size": 1, "max_queue_size": QUEUE, "max_queue_ms": 60_000, "cpu_instances": 2}
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(streamed("overloaded", network=slow(), serving=SERVING, roles=())),
]


@pytest.fixture(params=["grpc", "http"])
def url(server: SharedServer, request: pytest.FixtureRequest) -> str:
    return server.grpc_url if request.param == "grpc" else server.http_url


@contextmanager
def busy(server: SharedServer, form: str, *, callers: int) -> Iterator[list[OnestreamError | None]]:
    """Callers of normal priority who ask again and again; yields what each call ended with."""
    ended: list[OnestreamError | None] = []
    stop = threading.Event()

    def ask(client: Client) -> None:
        while not stop.is_set():
            try:
                client.infer(form, PHOTO)
                ended.append(None)
            except OnestreamError as error:
                ended.append(error)

    with Client(server.grpc_url, timeout_s=30) as client, ThreadPoolExecutor(callers) as threads:
        for _ in range(callers):
            threads.submit(ask, client)
        try:
            while len(ended) < 4:
                time.sleep(0.02)
            yield ended
        finally:
            stop.set()


@pytest.mark.parametrize("form", FORMS)
def test_above_capacity_some_are_answered_and_the_others_refused_at_once(url: str, form: str) -> None:
    worked_on: list[int] = []  # how many requests of the others the network answered while one was waited for
    refused: list[int] = []

    def ask(client: Client) -> None:
        before = len(worked_on)
        try:
            client.infer(form, PHOTO)
        except ServerOverloaded:
            refused.append(len(worked_on) - before)
        else:
            worked_on.append(len(worked_on) - before)

    with Client(url, timeout_s=60) as client, ThreadPoolExecutor(40) as threads:
        list(threads.map(lambda _: ask(client), range(120)))
    assert len(worked_on) >= QUEUE
    assert len(refused) >= 20
    assert statistics.median(refused) < statistics.median(worked_on)


@pytest.mark.parametrize("form", FORMS)
def test_high_goes_before_normal_before_low(server: SharedServer, url: str, form: str) -> None:
    def answered_before(client: Client) -> int:
        """How many of the others' requests are answered while this one is waited for."""
        before = len(ended)
        client.infer(form, PHOTO)
        return len(ended) - before

    def median(priority: Priority) -> float:
        with Client(url, priority=priority, timeout_s=30) as client:
            return statistics.median(answered_before(client) for _ in range(5))

    # Ten wait or are worked on all the time, by two: a normal one waits for four rounds more than a high one.
    with busy(server, form, callers=10) as ended:
        high, normal = median("high"), median("normal")
        assert high < normal
        assert not any(ended)


def test_a_request_whose_caller_no_longer_waits_is_not_worked_on(server: SharedServer, url: str) -> None:
    """Where it waits behind others: a busy machine may read it when these are answered, and then it is worked on."""

    def only_the_patient_are_worked_on(patient: Client, impatient: Client, threads: ThreadPoolExecutor) -> bool:
        def count() -> int:
            return patient.statistics("overloaded_fused").inference_count

        before = count()
        waiting = [threads.submit(patient.infer, "overloaded_fused", PHOTO) for _ in range(QUEUE)]
        wait_until(lambda: count() > before)
        were_sent = True
        for _ in range(4):
            with pytest.raises((TimedOut, ServerOverloaded, CannotConnect)) as left:
                impatient.infer("overloaded_fused", PHOTO, timeout_s=0.01)
            were_sent = were_sent and left.type is not CannotConnect
        others_were_before = were_sent and not any(one.done() for one in waiting[-4:])
        for one in waiting:
            one.result()
        # Another caller's request comes after all of them.
        patient.infer("overloaded_fused", PHOTO)
        # Triton counts a request a moment after it was answered.
        wait_until(lambda: count() >= before + QUEUE + 1)
        return others_were_before and count() == before + QUEUE + 1

    with (
        Client(server.grpc_url, timeout_s=60) as patient,
        Client(url, timeout_s=60) as impatient,
        ThreadPoolExecutor(QUEUE) as threads,
    ):
        impatient.infer("overloaded_fused", PHOTO)
        # Four that are worked on each time, as without their deadline, are never none.
        assert any(only_the_patient_are_worked_on(patient, impatient, threads) for _ in range(20))


def test_a_video_stream_goes_on_while_images_fill_the_network_s_queue(server: SharedServer, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    write_video(clip, "libx264", count=20)
    with busy(server, "overloaded", callers=40) as ended, Client(server.grpc_url, timeout_s=30) as client:
        with client.stream(clip, pipeline="overloaded") as frames:
            indices = [one.frame_index for one in frames]
            assert frames.ended_reason == "done"
        assert indices == list(range(20))
        assert any(isinstance(error, ServerOverloaded) for error in ended)
