"""The client against a real Triton, over both protocols, with and without shared memory."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_clients import CLIENTS
from patience import NEVER_S, ended, wait_until
from shared_server import SharedServer
from toy_models import TOY_LIMIT, Hold, memory_call, regions_left, url_of

from onestream.client import (
    BadImage,
    Client,
    ModelNotFound,
    OnestreamError,
    ServerFailed,
    ServerOverloaded,
    ServerUnavailable,
    TimedOut,
)

pytestmark = pytest.mark.needs_triton

FORMS = [
    pytest.param((kind, form), id=f"{kind} {form}", marks=[pytest.mark.slow] if kind == "async" else [])
    for kind in CLIENTS
    for form in ("grpc", "grpc shared memory", "http", "http shared memory")
]
"""Fast is the one client, and slow the other."""


@pytest.fixture(params=FORMS)
def client(request: pytest.FixtureRequest, toy_server: SharedServer) -> Iterator[Client]:
    """Without retries, which would hide a transport that fails now and then."""
    kind, form = request.param
    protocol, *memory = form.split(maxsplit=1)
    with CLIENTS[kind](url_of(toy_server, protocol), shared_memory=bool(memory), retries=0) as client:
        yield client


@pytest.fixture(params=[one for one in FORMS if "memory" not in str(one.id)])
def opened(request: pytest.FixtureRequest, toy_server: SharedServer) -> Callable[..., Any]:
    """Opens a client of either kind over either protocol."""
    kind, protocol = request.param
    return functools.partial(CLIENTS[kind], url_of(toy_server, protocol))


def fingerprint(data: bytes) -> list[int]:
    return [len(data), zlib.crc32(data) >> 1, 7]


def test_bytes_arrive_and_labels_return(client: Client, tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(5_000_000)
    path = tmp_path / "cat.jpg"
    path.write_bytes(data)
    for image, sent in ((data, data), (path, data), (data[:1], data[:1])):
        result = client.classify(image, pipeline="toy")
        assert [label.class_id for label in result.labels] == fingerprint(sent)
        assert [label.label for label in result.labels] == ["espresso", "café", "cup"]
        assert [label.score for label in result.labels] == pytest.approx([0.7, 0.2, 0.1])
        assert result.model == "toy"
        assert result.latency_ms > 0


def test_each_kind_of_refusal_and_the_limit_of_the_models_configuration(client: Client) -> None:
    with pytest.raises(BadImage) as bad:
        client.classify(b"refuse too_many_pixels", pipeline="toy_pipeline")
    assert (bad.value.code, bad.value.reason) == ("too_many_pixels", "22 bytes seen")
    with pytest.raises(ModelNotFound, match="'nope'"):
        client.classify(b"image", pipeline="nope")
    with pytest.raises(ServerFailed, match="as ordered") as failed:
        client.classify(b"fail", pipeline="toy")
    assert "model.py" not in str(failed.value)
    assert "At:" not in str(failed.value)
    assert failed.value.status == "INTERNAL"
    assert client.max_body_bytes("toy") == TOY_LIMIT
    with pytest.raises(BadImage, match=f"at most {TOY_LIMIT}"):
        client.classify(bytes(TOY_LIMIT + 1), pipeline="toy")


def test_a_deadline_ends_a_slow_call_and_the_client_goes_on(
    client: Client, toy_server: SharedServer, tmp_path: Path
) -> None:
    """A region in use is removed when its request ends."""
    # On a very busy machine a client of an earlier test may not have removed all within its second.
    before = regions_left(toy_server)
    client.max_body_bytes("toy")
    with Hold(tmp_path) as hold, pytest.raises(TimedOut):
        ended(lambda: client.classify(hold.image, pipeline="toy", timeout_s=0.3))
    assert client.classify(b"image", pipeline="toy").top.class_id == 5
    client.close()
    assert set(regions_left(toy_server)) <= set(before)


def test_a_full_queue_is_an_overload(client: Client) -> None:
    items = list(client.classify_many([b"sleep 0.1"] * 24, pipeline="toy_narrow", in_flight=24))
    errors = [item.error for item in items if item.error is not None]
    assert errors
    assert {type(error) for error in errors} == {ServerOverloaded}
    assert len(errors) < len(items)


def test_sixteen_threads_share_a_client(client: Client) -> None:
    def work(thread: int) -> int:
        random = np.random.default_rng(thread)
        for _ in range(25):
            data = random.bytes(int(random.integers(1, 300_000)))
            result = client.classify(data, pipeline="toy")
            assert [label.class_id for label in result.labels] == fingerprint(data)
        return thread

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == list(range(16))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_regions_are_gone_after_close_and_after_a_process_that_did_not_close(
    toy_server: SharedServer, protocol: str
) -> None:
    with Client(url_of(toy_server, protocol), shared_memory=True) as client:
        for item in client.classify_many([b"x" * 2_000_000, b"y"] * 10, pipeline="toy", in_flight=4):
            item.unwrap()
        assert regions_left(toy_server) != []
    assert regions_left(toy_server) == []
    script = f"""
        from onestream.client import Client
        client = Client({url_of(toy_server, protocol)!r}, shared_memory=True)
        for item in client.classify_many([b"image"] * 10, pipeline="toy", in_flight=3):
            item.unwrap()
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.PIPE, text=True)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, "")
    assert regions_left(toy_server, process.pid) == []


def test_a_server_that_forgot_its_regions_is_told_again(toy_server: SharedServer, opened: Callable[..., Any]) -> None:
    with opened(shared_memory=True, retries=0) as client:
        client.classify(b"image", pipeline="toy")

        def forgotten() -> bool:
            try:
                with urllib.request.urlopen(memory_call(toy_server, "unregister", b""), timeout=10):
                    return True
            except urllib.error.HTTPError as error:
                # Triton may answer a request a moment before it lets go of the region.
                if error.code != 500:
                    raise
                return False

        wait_until(forgotten, "the server to forget its regions")
        assert client.classify(b"image", pipeline="toy").top.class_id == 5


def test_closing_ends_calls_in_progress(opened: Callable[..., Any], tmp_path: Path) -> None:
    client = opened(retries=0, timeout_s=NEVER_S)
    client.max_body_bytes("toy")
    with Hold(tmp_path) as hold, ThreadPoolExecutor(1) as thread:
        call = thread.submit(client.classify, hold.image, pipeline="toy")
        hold.wait_until_begun()
        client.close()
        with pytest.raises(OnestreamError):
            ended(call.result)


def test_a_killed_model_is_bridged_by_retries(opened: Callable[..., Any]) -> None:
    with opened(retries=0) as impatient, pytest.raises(ServerUnavailable):
        impatient.classify(b"die", pipeline="toy_mortal")
    with opened(retries=8, timeout_s=30) as patient:
        assert patient.classify(b"image", pipeline="toy_mortal").top.class_id == 5


def test_readiness_and_server_info(opened: Callable[..., Any]) -> None:
    with opened() as client:
        client.wait_until_ready("toy")
        wait_until(client.is_ready)  # other modules' models may just be loaded
        assert client.is_ready("toy")
        assert not client.is_ready("nope")
        info = client.server_info()
    assert info.name == "triton"
    assert info.version
    assert "system_shared_memory" in info.extensions


def test_statistics_of_an_ensemble_and_its_steps(opened: Callable[..., Any]) -> None:
    with opened() as client:
        before = client.statistics("toy_pipeline")
        for _ in range(3):
            client.classify(b"sleep 0.02", pipeline="toy_pipeline")

        # Triton writes its numbers a moment after it has answered.
        def counted() -> bool:
            nonlocal spent
            spent = client.statistics("toy_pipeline") - before
            return spent.steps[0].success.count == spent.success.count == 3

        spent = None
        wait_until(counted)
    (step,) = spent.steps
    assert step.model == "toy_step"
    assert spent.inference_count == step.inference_count == step.execution_count == 3
    assert 20 <= step.compute_infer_ms <= step.request_ms <= spent.request_ms
    assert 20 <= spent.compute_infer_ms <= spent.request_ms
    assert 0 <= step.queue_ms < step.request_ms
    assert step.mean_batch_size == 1.0
