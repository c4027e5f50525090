"""What a request to a cascade carries reaches the networks that it asks: id, time that is left, trace."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from colored_cells import drawn, picture
from patience import NEVER_S, wait_until
from PIL import Image
from trace_collector import Traced, attributes
from tritonclient import grpc
from tritonclient.utils import InferenceServerException
from watched import CARRIED, FIND, NAME, Watched

from onestream.client import Client
from onestream.wire.refusals import WAITED_TOO_LONG

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

HEAVY_TIMES = 4
"""By which a side of a picture is enlarged to 2048 pixels: a PNG of that size is decoded out of the others' way."""


@pytest.fixture(params=["grpc", "http"])
def client(watched: Watched, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = watched.server.grpc_url if request.param == "grpc" else watched.server.http_url
    with Client(url, timeout_s=NEVER_S) as connected:
        yield connected


@pytest.fixture
def triton(watched: Watched) -> Iterator[grpc.InferenceServerClient]:
    """Triton's own client, which waits for an answer however late it is."""
    with grpc.InferenceServerClient(watched.server.grpc_address) as connected:
        yield connected


def traced(watched: Watched, request_id: str) -> Traced:
    """The model that was called, in the trace of a request."""
    (called,) = watched.collector.request(request_id).below
    return called


def tensor(image: bytes) -> list[grpc.InferInput]:
    given = grpc.InferInput("image", [1, len(image)], "UINT8")
    given.set_data_from_numpy(np.frombuffer(image, np.uint8)[None])
    return [given]


def test_networks_are_told_the_id_and_what_is_left_of_the_time(watched: Watched, client: Client) -> None:
    request_id = f"told:{client.url[:4]}"
    with ThreadPoolExecutor(1) as threads:
        with watched.held(FIND):
            answer = threads.submit(client.infer, "carried", picture(drawn(3, 1)), request_id=request_id)
            wait_until(lambda: watched.asked(FIND, request_id))
            time.sleep(0.5)
        assert answer.result()["labels"].shape == (1, 3)
    (first,) = watched.asked(FIND, request_id)
    assert 0 < first < NEVER_S * 1e6
    later = watched.asked(NAME, request_id)
    assert len(later) == 3
    assert all(0 < left <= first - 0.5e6 for left in later), (first, later)


def test_a_request_without_a_timeout_asks_without_one(watched: Watched, triton: grpc.InferenceServerClient) -> None:
    triton.infer("carried", tensor(picture(drawn(2, 2))), request_id="patient")
    assert (watched.asked(FIND, "patient"), watched.asked(NAME, "patient")) == ([0], [0, 0])


def test_one_that_a_network_lets_wait_for_too_long_is_refused_as_by_any_model(
    watched: Watched, triton: grpc.InferenceServerClient
) -> None:
    with ThreadPoolExecutor(1) as threads, watched.held(NAME):
        busy = threads.submit(triton.infer, "carried", tensor(picture(drawn(4, 3))), request_id="busy")
        # Both processes of the network have something to do.
        wait_until(lambda: len(watched.asked(NAME, "busy")) == 2)
        with pytest.raises(InferenceServerException) as refused:
            triton.infer("carried", tensor(picture(drawn(1, 3))), request_id="late", timeout=3_000_000)
    assert busy.result().as_numpy("labels").shape == (1, 4)
    assert (refused.value.status(), refused.value.message()) == ("StatusCode.UNAVAILABLE", WAITED_TOO_LONG)
    assert (len(watched.asked(FIND, "late")), watched.asked(NAME, "late")) == (1, [])


def test_the_networks_are_below_the_cascade_in_its_trace(watched: Watched, client: Client) -> None:
    for form, expected in zip(CARRIED, ([FIND, NAME, NAME, NAME], []), strict=True):
        request_id = f"traced:{client.url[:4]}:{form}"
        client.infer(form, picture(drawn(3, 4)), request_id=request_id)
        called = traced(watched, request_id)
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
        assert client.infer("carried", file.getvalue(), request_id=request_id)["labels"].shape == (1, 3)
        assert len(watched.asked(NAME, request_id)) == 3
        called = traced(watched, request_id)
        assert (called.model, called.below) == ("carried", ())
    assert watched.server.pid == before


def test_a_cascade_states_that_its_answers_take_longer(watched: Watched) -> None:
    with Client(watched.server.grpc_url) as client:
        assert [client.default_timeout_s(form) for form in CARRIED] == [60, 60]
        assert client.default_timeout_s(NAME) == 10
