"""Processes of a server are killed at work, and clients vanish: requests and streams end, and all answers again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from clip_files import COUNT, write_video
from colored_cells import drawn, picture, places
from patience import PATIENCE_S, wait_until
from shared_server import metric
from watched import Watched

from onestream.client import BadStream, Client, OnestreamError, ServerUnavailable
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
DEADLINE_S = 5.0


@pytest.mark.parametrize(
    ("victim", "pipeline", "how"),
    [
        ("classify_fused", "classify_fused", signal.SIGKILL),
        ("classify_preprocess", "classify", signal.SIGSTOP),
        ("classify_model", "classify", signal.SIGKILL),
    ],
)
def test_a_killed_or_stopped_model_process_is_replaced(
    server: Server, photos: dict[str, bytes], victim: str, pipeline: str, how: signal.Signals
) -> None:
    stop = threading.Event()
    answered: list[str] = []
    errors: list[OnestreamError] = []

    def load() -> None:
        with Client(server.grpc_url, timeout_s=DEADLINE_S, retries=0) as client:
            while not stop.is_set():
                try:
                    answered.append(client.classify(photos["coffee"], pipeline=pipeline).top.label)
                except OnestreamError as error:
                    errors.append(error)
                    time.sleep(0.01)

    before = Counter(server.restarts)
    threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(answered) > 20)
        assert not errors
        triton = server.pid
        os.kill(_process_of(server, victim), how)
        with Client(server.http_url, timeout_s=DEADLINE_S, retries=0) as probe:
            wait_until(lambda: not probe.is_ready(), "the server is not ready while a model is dead")
            wait_until(lambda: probe.is_ready() and _answers(probe, photos["coffee"], pipeline), "it answers again")
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a request goes on beyond its deadline"
    assert set(answered) == {"espresso"}
    assert Counter(server.restarts) == before + Counter({victim: 1})
    assert server.pid == triton, "tritonserver had to be started again"


def test_a_network_of_a_cascade_that_is_killed_is_served_again_and_the_fused_form_does_not_notice(
    server: Server,
) -> None:
    colors = drawn(6, 3)
    os.kill(_process_of(server, "carried_name_model"), signal.SIGKILL)
    failures = set()
    deadline = time.monotonic() + 60
    with Client(server.grpc_url, timeout_s=20, retries=0) as client:
        while True:
            assert sorted(places(client.infer("carried_fused", picture(colors))["boxes"][0])) == list(range(6))
            try:
                found = client.infer("carried", picture(colors))
            except OnestreamError as error:
                failures.add(type(error))
                assert time.monotonic() < deadline, failures
                time.sleep(0.1)
                continue
            break
    assert found["labels"].shape == (1, 6)
    assert failures <= {ServerUnavailable}, failures


def test_a_triton_that_is_killed_at_work_is_started_again_and_nothing_is_left_of_it(
    watched: Watched, photos: dict[str, bytes]
) -> None:
    server, events = watched.server, watched.events
    address = server.grpc_url
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    with Client(server.grpc_url, timeout_s=DEADLINE_S, retries=0) as client:
        items = client.classify_many([photos["coffee"]] * 400, pipeline="classify_fused", in_flight=16)
        for _ in range(50):
            next(items)
        os.kill(server.pid, signal.SIGKILL)
        assert any(item.error is not None for item in items)
        _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
        assert not alive
        wait_until(lambda: _answers(client, photos["coffee"], "classify_fused"), events)
    assert server.grpc_url == address
    assert any("tritonserver was killed (SIGKILL)" in event for event in events)


def _process_of(server: Server, model: str) -> int:
    return next(one.pid for one in find_model_processes(server.pid).running if one.model == model)


def _answers(client: Client, image: bytes, pipeline: str) -> bool:
    try:
        return client.classify(image, pipeline=pipeline).top.label == "espresso"
    except OnestreamError:
        return False


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "clip.mp4", "libx264", options={"bf": "2", "g": "20"})


def test_clients_that_vanish_or_take_nothing_leave_no_stream_behind(server: Server, clip: Path) -> None:
    def open_streams() -> float:
        return metric(server.metrics_url, 'onestream_video_streams{model="streamed_video"')

    with Client(server.grpc_url, timeout_s=20) as client:
        vanishing = [client.stream(clip, pipeline="streamed", results=1).open() for _ in range(2)]
        for stream in vanishing:
            next(stream)
            stream.close()
        silent = client.stream(clip, pipeline="streamed", results=1).open()
        # Metrics are a second late: they must have told of the streams before they can tell that none is left.
        wait_until(lambda: open_streams() > 0)
        wait_until(lambda: open_streams() == 0)
        with pytest.raises(BadStream, match="took no result for 2 s"):
            list(silent)
        silent.close()
        with client.stream(clip, pipeline="streamed") as frames:
            assert len(list(frames)) == COUNT


def test_a_process_whose_memory_stays_too_large_says_so_and_is_replaced(server: Server, clip: Path) -> None:
    """A decoder's libraries alone are more than what is allowed here."""
    with Client(server.grpc_url, timeout_s=20) as client:
        # Its caller takes nothing, so that it is still open when the process looks at its memory.
        stream = client.stream(clip, pipeline="carried", results=1).open()
        wait_until(lambda: stream.error)
        assert str(stream.error).startswith("bad stream (too_large): all streams together take more than 1 MiB")
        stream.close()
        wait_until(lambda: server.restarts.get("carried_video") and client.is_ready("carried_video"), server.restarts)
    assert server.is_running
