"""What models say in the log about refused requests: each with its id, and never a flood."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st
from patience import wait_until

from onestream.serving.models.refusal_log import AT_MOST, RefusalLog, printable

ERROR = ValueError("bad image (empty): no bytes")


def test_a_refusal_is_a_line_with_the_models_name_and_the_requests_id() -> None:
    lines: list[str] = []
    log = RefusalLog("classify_fused", write=lines.append)
    log.refused("order-7", ERROR)
    log.refused("", ERROR)
    log.refused("7", ValueError("x" * 100_000))
    log.close()
    assert lines[:2] == [
        "classify_fused: request order-7: bad image (empty): no bytes",
        "classify_fused: bad image (empty): no bytes",
    ]
    assert len(lines[2]) < 1100


def test_a_flood_is_counted_and_the_next_window_begins_anew() -> None:
    lines: list[str] = []
    # Longer than a busy machine may pause within the flood.
    log = RefusalLog("m", write=lines.append, window_s=3)
    for number in range(AT_MOST + 500):
        log.refused(str(number), ERROR)
    assert len(lines) == AT_MOST
    wait_until(lambda: len(lines) > AT_MOST)
    assert lines[AT_MOST:] == ["m: 500 more were refused within 3 s"]
    log.refused("later", ERROR)
    assert lines[-1] == "m: request later: bad image (empty): no bytes"
    log.close()
    assert len(lines) == AT_MOST + 2


def test_many_threads_lose_no_refusal() -> None:
    lines: list[str] = []
    log = RefusalLog("m", write=lines.append, window_s=3600)
    threads = [threading.Thread(target=lambda: [log.refused("7", ERROR) for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert len(lines) == AT_MOST + 1
    assert lines[-1] == f"m: {800 - AT_MOST} more were refused within 3600 s"


@given(st.text(), st.text("abcXYZ019._~:/+=@-", max_size=128))
def test_whatever_a_client_calls_its_request_is_one_short_word(request_id: str, of_our_client: str) -> None:
    word = printable(request_id)
    assert len(word) <= 128
    assert word.isascii()
    assert word.isprintable()
    assert not set(word) & set(" \"'\\")
    assert bool(word) == bool(request_id)
    assert printable(of_our_client) == of_our_client
