"""What a request to a cascade carries reaches the networks that it asks: id, time that is left, trace."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builds import build
from colored_cells import FORMS, drawn, picture, write
from patience import NEVER_S, wait_until
from PIL import Image
from small_models import running
from trace_collector import Collector, Traced, attributes, collecting
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from onestream.client import Client
from onestream.serving.server.server import Server
from onestream.wire.refusals import WAITED_TOO_LONG

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

FIND, NAME = "grid_find_model", "grid_name_model"
HEAVY_TIMES = 4
"""By which a side of a picture is enlarged to 2048 pixels: a PNG of that size is decoded out of the others' way."""

WATCHED = """
import json
from pathlib import Path
from time import sleep

from onestream.serving.models.image import Network

FOLDER = Path({folder!r})


class TritonPythonModel(Network):
    def answer(self, requests):
        with (FOLDER / f"{{self.name}}.asked").open("a") as file:
            for request in requests:
                file.write(json.dumps([request.request_id(), request.timeout()]) + "\\n")
        while (FOLDER / f"{{self.name}}.held").exists():
            sleep(0.01)
        return super().answer(requests)
"""
"""A network that notes id and timeout of its requests, and lets them wait as long as a file is there."""


@dataclass(frozen=True)
class Watched:
    """A server, a folder with what its networks note, and the collector of its traces."""

    server: Server
    folder: Path
    collector: Collector

    def asked(self, network: str, request_id: str) -> list[int]:
        """The timeouts, in microseconds, of the requests with this id that the network was given so far."""
        path = self.folder / f"{network}.asked"
        noted = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [timeout_us for name, timeout_us in noted if name == request_id]

    @contextmanager
    def held(self, network: str) -> Iterator[None]:
        """The network answers nothing."""
        file = self.folder / f"{network}.held"
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def traced(self, request_id: str) -> Traced:
        """The model that was called, in the trace of a request."""
        (called,) = self.collector.request(request_id).below
        return called


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server of its own, which traces each request and whose networks are held."""
    folder = tmp_path_factory.mktemp("carried")
    # No queue refuses anything for its own sake.
    serving = {"max_batch_size": 1, "cpu_instances": 2, "max_queue_size": 64, "max_queue_ms": 1_000_000}
    build(folder / "grid.yaml", folder=folder / "repository", onnx_files=write(folder, serving=serving))
    for network in (FIND, NAME):
        (folder / "repository" / network / "1" / "model.py").write_text(WATCHED.format(folder=str(folder)))
    forms = [*FORMS, FIND, NAME]
    with collecting() as collector, running(folder / "repository", models=forms, trace=collector.url) as server:
        yield Watched(server, folder, collector)


@pytest.fixture(params=["grpc", "http"])
def client(watched: Watched, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = watched.server.grpc_url if request.param == "grpc" else watched.server.http_url
    with Client(url, timeout_s=NEVER_S) as connected:
        yield connected


@contextmanager
def triton(watched: Watched) -> Iterator[grpc.InferenceServerClient]:
    """Triton's own client, which waits for an answer however late it is."""
    with grpc.InferenceServerClient(watched.server.grpc_address) as connected:
        yield connected


def tensor(image: bytes) -> list[grpc.InferInput]:
    given = grpc.InferInput("image", [1, len(image)], "UINT8")
    given.set_data_from_numpy(np.frombuffer(image, np.uint8)[None])
    return [given]


def test_networks_are_told_the_id_and_what_is_left_of_the_time(watched: Watched, client: Client) -> None:
    request_id = f"told:{client.url[:4]}"
    with ThreadPoolExecutor(1) as threads:
        with watched.held(FIND):
            answer = threads.submit(client.infer, "grid", picture(drawn(3, 1)), request_id=request_id)
            wait_until(lambda: watched.asked(FIND, request_id))
            time.sleep(0.5)
        assert answer.result()["labels"].shape == (1, 3)
    (first,) = watched.asked(FIND, request_id)
    assert 0 < first < NEVER_S * 1e6
    later = watched.asked(NAME, request_id)
    assert len(later) == 3
    assert all(0 < left <= first - 0.5e6 for left in later), (first, later)


def test_a_request_without_a_timeout_asks_without_one(watched: Watched) -> None:
    with triton(watched) as asking:
        asking.infer("grid", tensor(picture(drawn(2, 2))), request_id="patient")
    assert (watched.asked(FIND, "patient"), watched.asked(NAME, "patient")) == ([0], [0, 0])


def test_one_that_a_network_lets_wait_for_too_long_is_refused_as_by_any_model(watched: Watched) -> None:
    with triton(watched) as asking, ThreadPoolExecutor(1) as threads:
        with watched.held(NAME):
            busy = threads.submit(asking.infer, "grid", tensor(picture(drawn(4, 3))), request_id="busy")
            # Both processes of the network have something to do.
            wait_until(lambda: len(watched.asked(NAME, "busy")) == 2)
            with pytest.raises(InferenceServerException) as refused:
                asking.infer("grid", tensor(picture(drawn(1, 3))), request_id="late", timeout=3_000_000)
        assert busy.result().as_numpy("labels").shape == (1, 4)
    assert (refused.value.status(), refused.value.message()) == ("StatusCode.UNAVAILABLE", WAITED_TOO_LONG)
    assert (len(watched.asked(FIND, "late")), watched.asked(NAME, "late")) == (1, [])


def test_the_networks_are_below_the_cascade_in_its_trace(watched: Watched, client: Client) -> None:
    for form, expected in zip(FORMS, ([FIND, NAME, NAME, NAME], []), strict=True):
        request_id = f"traced:{client.url[:4]}:{form}"
        client.infer(form, picture(drawn(3, 4)), request_id=request_id)
        called = watched.traced(request_id)
        assert called.model == form
        assert [one.model for one in called.below] == expected
        assert all(one.total_ms <= called.total_ms for one in called.below)
        assert {attributes(one.span)["triton.request_id"] for one in (called, *called.below)} == {request_id}


def test_the_trace_of_a_large_picture_ends_at_the_cascade(watched: Watched, client: Client) -> None:
    """Triton has let go of its request when the networks are asked."""
    image = Image.open(io.BytesIO(picture(drawn(3, 5))))
    file = io.BytesIO()
    image.resize([side * HEAVY_TIMES for side in image.size], Image.Resampling.NEAREST).save(file, "PNG")
    before = watched.server.pid
    for number in range(2):
        request_id = f"large:{client.url[:4]}:{number}"
        assert client.infer("grid", file.getvalue(), request_id=request_id)["labels"].shape == (1, 3)
        assert len(watched.asked(NAME, request_id)) == 3
        called = watched.traced(request_id)
        assert (called.model, called.below) == ("grid", ())
    assert watched.server.pid == before


def test_a_cascade_states_that_its_answers_take_longer(watched: Watched) -> None:
    with Client(watched.server.grpc_url) as client:
        assert [client.default_timeout_s(form) for form in FORMS] == [60, 60]
        assert client.default_timeout_s(NAME) == 10
