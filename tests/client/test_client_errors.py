"""The error tree, and how a server's words become one of its errors."""

from __future__ import annotations

import pickle

import pytest
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
    TimedOut,
)
from onestream.client._transports.refusals import readable, refusal

URL = "grpc://127.0.0.1:8001"


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
    message = f"{before}bad image (too_many_pixels): 30000x30000 declared, allowed are 50000000 pixels{after}"
    error = refusal("INVALID_ARGUMENT", message, model="classify", url=URL)
    assert isinstance(error, BadImage)
    assert error.code == "too_many_pixels"
    assert error.reason == "30000x30000 declared, allowed are 50000000 pixels"


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


def test_what_only_looks_like_a_path_is_kept() -> None:
    message = "expected image/jpeg or 24/30 fps at http://host/a/b, got 3/4 of it"
    assert readable(message) == message


def test_a_python_traceback_is_cut_and_length_is_bounded() -> None:
    assert readable("boom\nTraceback (most recent call last):\n  File ...") == "boom"
    assert len(readable("x" * 10_000)) < 600
    assert readable("") == "no reason given"
