"""What is tried again, how often, and that the deadline always wins."""

from __future__ import annotations

import pytest
from both_clients import Connect
from client_fakes import FakeTransport, echo_size

from onestream.client import (
    BadImage,
    CannotConnect,
    InvalidRequest,
    ModelNotFound,
    OnestreamError,
    ServerFailed,
    ServerOverloaded,
    ServerUnavailable,
    Tensors,
    TimedOut,
    UnexpectedResponse,
)

LOST = CannotConnect("gone")
RESTARTING = ServerUnavailable("back soon", status="INTERNAL")
FULL = ServerOverloaded("full", status="UNAVAILABLE")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client wanted to wait; nothing really waits."""
    seconds: list[float] = []

    async def wait(waited_s: float) -> None:
        seconds.append(waited_s)

    monkeypatch.setattr("onestream.client._requests.sleep", seconds.append)
    monkeypatch.setattr("onestream.client._requests_aio.sleep", wait)
    return seconds


class Failing:
    """Raises the errors one after the other, then answers."""

    def __init__(self, *errors: OnestreamError) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, model: str, data: bytes) -> Tensors:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return echo_size(model, data)


@pytest.mark.parametrize("error", [LOST, RESTARTING])
def test_what_may_pass_is_tried_again(waits: list[float], error: OnestreamError, connect: Connect) -> None:
    failing = Failing(error, error)
    with connect(transport=FakeTransport(failing)) as client:
        assert client.classify(b"image").top.class_id == 5
    assert failing.calls == 3
    assert len(waits) == 2
    assert waits[1] > waits[0] > 0


def test_a_restart_is_given_more_time_than_a_lost_connection(waits: list[float], connect: Connect) -> None:
    with connect(transport=FakeTransport(Failing(LOST, RESTARTING))) as client:
        client.classify(b"image")
    assert waits[0] <= 0.125
    assert 1.5 <= waits[1] <= 2.5


@pytest.mark.parametrize("error", [LOST, RESTARTING])
def test_after_the_last_retry_the_error_is_raised_as_it_is(
    waits: list[float], error: OnestreamError, connect: Connect
) -> None:
    failing = Failing(*[error] * 9)
    with connect(transport=FakeTransport(failing)) as client, pytest.raises(type(error)) as caught:
        client.classify(b"image")
    assert caught.value is error
    assert failing.calls == 3
    assert len(waits) == 2


@pytest.mark.parametrize(
    "error",
    [
        BadImage("corrupt", "no"),
        TimedOut("late"),
        FULL,
        ModelNotFound("who", status="NOT_FOUND"),
        InvalidRequest("no", status="INVALID_ARGUMENT"),
        ServerFailed("boom", status="INTERNAL"),
        UnexpectedResponse("what"),
    ],
)
def test_what_will_not_pass_is_not_tried_again(waits: list[float], error: OnestreamError, connect: Connect) -> None:
    failing = Failing(error)
    with connect(transport=FakeTransport(failing)) as client, pytest.raises(type(error)):
        client.classify(b"image")
    assert failing.calls == 1
    assert waits == []


def test_no_retries(waits: list[float], connect: Connect) -> None:
    with connect(transport=FakeTransport(Failing(LOST)), retries=0) as client, pytest.raises(CannotConnect):
        client.classify(b"image")
    assert waits == []
    with pytest.raises(ValueError, match="retries=-1"):
        connect(retries=-1)


def test_waiting_beyond_the_deadline_is_not_begun(waits: list[float], connect: Connect) -> None:
    failing = Failing(RESTARTING, RESTARTING)
    with connect(transport=FakeTransport(failing)) as client, pytest.raises(ServerUnavailable):
        client.classify(b"image", timeout_s=0.2)
    assert waits == []
    assert failing.calls == 1


def test_each_attempt_gets_only_the_time_that_is_left(connect: Connect) -> None:
    transport = FakeTransport(Failing(LOST, LOST))
    with connect(transport=transport) as client:
        client.classify(b"image", timeout_s=5)
    given = [timeout_s for _, timeout_s in transport.inferences]
    assert 5 >= given[0] > given[1] > given[2] > 3


def test_clients_that_failed_together_do_not_come_back_together(waits: list[float], connect: Connect) -> None:
    for _ in range(20):
        with connect(transport=FakeTransport(Failing(LOST))) as client:
            client.classify(b"image")
    assert len(set(waits)) > 10
