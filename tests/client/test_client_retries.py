"""How a server's words become an error of the tree, which errors are tried again, and that the deadline always wins."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from both_clients import Connect
from client_fakes import FakeTransport, echo_size
from hypothesis import given
from hypothesis import strategies as st

from onestream.client import (
    BadImage,
    CannotConnect,
    InvalidRequest,
    ModelNotFound,
    OnestreamError,
    ServerFailed,
    ServerOverloaded,
    ServerRefused,
    ServerUnavailable,
    SharedMemoryUnavailable,
    Tensors,
    TimedOut,
    UnexpectedResponse,
)
from onestream.client._transports.refusals import readable, refusal

URL = "grpc://127.0.0.1:8001"
LOST = CannotConnect("gone")
RESTARTING = ServerUnavailable("back soon", status="INTERNAL")
FULL = ServerOverloaded("full", status="UNAVAILABLE")


def test_the_four_failures_that_call_for_different_actions_do_not_catch_each_other() -> None:
    kinds = [CannotConnect, TimedOut, ServerRefused, BadImage]
    for one in kinds:
        assert [other for other in kinds if issubclass(one, other)] == [one]


@pytest.mark.parametrize(
    "error",
    [BadImage("corrupt", "cut after 10 bytes"), ServerOverloaded("full", status="UNAVAILABLE"), TimedOut("late")],
)
def test_errors_survive_a_process_boundary(error: OnestreamError) -> None:
    error.request_id = "far-away"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        ("UNAVAILABLE", "[request id: x] Exceeds maximum queue size", ServerOverloaded),
        ("UNAVAILABLE", "[request id: x] Request timeout expired", ServerOverloaded),
        ("RESOURCE_EXHAUSTED", "too many requests", ServerOverloaded),
        ("INTERNAL", "Stub process 'toy_0_0' is not healthy.", ServerUnavailable),
        ("NOT_FOUND", "Request for unknown model: 'toy' has no available versions", ServerUnavailable),
        ("UNAVAILABLE", "Server is stopping, scheduler for model has stopped", ServerUnavailable),
        ("UNAVAILABLE", "too many large images, or pages of much text, wait; it may be sent again", ServerUnavailable),
        ("UNAVAILABLE", "in ensemble 'toy', too little memory is free …; it may be sent again", ServerUnavailable),
        ("NOT_FOUND", "Request for unknown model: 'nope' is not found", ModelNotFound),
        ("INVALID_ARGUMENT", "inference input 'image' data-type is 'FP32', but expects 'UINT8'", InvalidRequest),
        ("INTERNAL", "Failed to process the request(s), message: ValueError: boom", ServerFailed),
        ("NOT_FOUND", "Unable to find shared memory region: 'r'", SharedMemoryUnavailable),
        ("UNAUTHENTICATED", "who are you", ServerRefused),
    ],
)
def test_a_refusal_says_what_can_be_done(status: str, message: str, kind: type[OnestreamError]) -> None:
    error = refusal(status, message, model="toy", url=URL)
    assert type(error) is kind or (kind is SharedMemoryUnavailable and isinstance(error, kind))
    assert "toy" in str(error)
    assert URL in str(error)
    if isinstance(error, ServerRefused):
        assert error.status == status


@pytest.mark.parametrize("before", ["", "in ensemble 'classify', ", "[request id: 7] ", "Failed, message: "])
@pytest.mark.parametrize("after", ["", "\n\nAt:\n  /models/classify_preprocess/1/model.py(12): execute\n"])
def test_a_bad_image_is_recognised_wherever_triton_puts_the_words(before: str, after: str) -> None:
    reason = "30000x30000 declared, allowed are 50000000 pixels"
    message = f"{before}bad image (too_many_pixels): {reason}{after}"
    error = refusal("INVALID_ARGUMENT", message, model="classify", url=URL)
    assert isinstance(error, BadImage)
    assert (error.code, error.reason) == ("too_many_pixels", reason)


PATHS = st.lists(st.text("abcxyz019_.-", min_size=1, max_size=8), min_size=2, max_size=6).map(
    lambda parts: "/" + "/".join(parts)
)


@given(path=PATHS, line=st.integers(1, 999))
def test_no_message_contains_a_path_of_the_server_or_a_trace(path: str, line: int) -> None:
    message = f"failed to open '{path}': ValueError: boom\n\nAt:\n  {path}({line}): execute\n  {path}(1): run\n"
    text = readable(message)
    assert path not in text
    assert "At:" not in text
    assert "execute" not in text
    assert text.endswith("ValueError: boom")


def test_what_only_looks_like_a_path_is_kept_and_length_is_bounded() -> None:
    message = "expected image/jpeg or 24/30 fps at http://host/a/b, got 3/4 of it"
    assert readable(message) == message
    assert readable("boom\nTraceback (most recent call last):\n  File ...") == "boom"
    assert len(readable("x" * 10_000)) < 600
    assert readable("") == "no reason given"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client wanted to wait; nothing really waits."""
    seconds: list[float] = []

    async def wait(waited_s: float) -> None:
        seconds.append(waited_s)

    monkeypatch.setattr("onestream.client._requests.sleep", seconds.append)
    monkeypatch.setattr("onestream.client._requests_aio.sleep", wait)
    return seconds


def called(connect: Connect, *errors: OnestreamError, timeout_s: float = 10, **options: int) -> tuple[Any, list[float]]:
    """What a call comes to whose attempts fail so, one after the other, and the time that each attempt was given."""
    left = list(errors)

    def answer(model: str, data: bytes) -> Tensors:
        if left:
            raise left.pop(0)
        return echo_size(model, data)

    transport = FakeTransport(answer)
    with connect(transport=transport, **options) as client:
        try:
            found: Any = client.classify(b"image", timeout_s=timeout_s).top.class_id
        except OnestreamError as error:
            found = error
    return found, [given_s for _, given_s in transport.inferences]


@pytest.mark.parametrize("error", [LOST, RESTARTING])
def test_what_may_pass_is_tried_again_twice(waits: list[float], error: OnestreamError, connect: Connect) -> None:
    for failures, end in ((2, 5), (9, error)):
        waits.clear()
        found, attempts = called(connect, *[error] * failures)
        assert found == end
        assert len(attempts) == 3
        assert len(waits) == 2
        assert waits[1] > waits[0] > 0


def test_a_restart_is_given_more_time_than_a_lost_connection(waits: list[float], connect: Connect) -> None:
    called(connect, LOST, RESTARTING)
    assert waits[0] <= 0.125
    assert 1.5 <= waits[1] <= 2.5


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (BadImage("corrupt", "no"), {}),
        (TimedOut("late"), {}),
        (FULL, {}),
        (ModelNotFound("who", status="NOT_FOUND"), {}),
        (InvalidRequest("no", status="INVALID_ARGUMENT"), {}),
        (ServerFailed("boom", status="INTERNAL"), {}),
        (UnexpectedResponse("what"), {}),
        (LOST, {"retries": 0}),
        # The wait would end after the deadline.
        (RESTARTING, {"timeout_s": 0.2}),
    ],
)
def test_what_will_not_pass_is_not_tried_again(
    waits: list[float], error: OnestreamError, options: dict[str, Any], connect: Connect
) -> None:
    found, attempts = called(connect, error, **options)
    assert found is error
    assert len(attempts) == 1
    assert waits == []


def test_each_attempt_gets_only_the_time_that_is_left(connect: Connect) -> None:
    _, (first_s, second_s, third_s) = called(connect, LOST, LOST, timeout_s=5)
    assert 5 >= first_s > second_s > third_s > 3


def test_clients_that_failed_together_do_not_come_back_together(waits: list[float], connect: Connect) -> None:
    for _ in range(20):
        called(connect, LOST)
    assert len(set(waits)) > 10
