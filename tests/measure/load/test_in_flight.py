"""Load by our own client, on a real server."""

from __future__ import annotations

import pytest

from onestream.client import CannotConnect
from onestream.measure.load.in_flight import keep_in_flight
from onestream.serving.server.server import Server

pytestmark = pytest.mark.needs_triton


def test_requests_are_kept_in_flight_and_counted(server: Server, warmup: bytes) -> None:
    seen = keep_in_flight(server.grpc_address, "classify_fused", [warmup], concurrency=4, duration_s=0.5)
    assert seen.images_per_s > 0
    assert 0 < seen.p50_ms <= seen.p99_ms


def test_answers_that_come_too_late_still_tell_a_speed(server: Server, warmup: bytes) -> None:
    seen = keep_in_flight(server.grpc_address, "classify_fused", [warmup], concurrency=2, duration_s=0.0001)
    assert 0 < seen.images_per_s < 2 / 0.0001, "two answers, but not within the time"


def test_a_server_that_is_not_there_is_an_error(warmup: bytes) -> None:
    with pytest.raises(CannotConnect):
        keep_in_flight("127.0.0.1:1", "classify_fused", [warmup], concurrency=2, duration_s=0.1)


@pytest.fixture
def warmup() -> bytes:
    from onestream.serving.building.warmup import warmup_photo

    return warmup_photo()
