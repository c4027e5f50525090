"""What is known of the caller of a request, and what goes on to the requests that are made for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from triton_stand_in import Request

from onestream.serving.models import deadline
from onestream.serving.models.deadline import Caller, NobodyWaits, RequestCaller


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, as its only item."""
    now = [1000.0]
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now[0])
    return now


def test_what_is_left_of_the_time_goes_on_and_not_the_whole(clock: list[float]) -> None:
    caller = RequestCaller(Request("cat-1", timeout_us=2_000_000), is_held=True)
    for passed_s, left_us in ((0, 2_000_000), (0.5, 1_500_000), (1.999999, 1)):
        clock[0] = 1000 + passed_s
        assert caller.handed_on() == {"request_id": "cat-1", "timeout": left_us, "trace": Request.traced}
        assert caller.is_waiting()
    clock[0] = 1003
    assert caller.is_late()
    assert not caller.is_waiting()
    with pytest.raises(NobodyWaits):
        caller.handed_on()


def test_who_gives_no_time_waits_for_as_long_as_it_takes(clock: list[float]) -> None:
    caller = RequestCaller(Request("cat-1"), is_held=True)
    clock[0] = 1e9
    assert caller.is_waiting()
    assert caller.handed_on() == {"request_id": "cat-1", "trace": Request.traced}
    # Triton let go of this one, whose trace is not used.
    assert RequestCaller(Request("cat-1"), is_held=False).handed_on() == {"request_id": "cat-1"}
    assert not RequestCaller(Request(is_cancelled=True), is_held=True).is_waiting()
    anybody: Any = Caller()
    assert (anybody.is_waiting(), anybody.handed_on()) == (True, {})


# ---- of a batch: a process that works on one for too long is ended by the kernel

_PROCESS = """
import sys, threading, types
from ctypes import PyDLL
triton = types.ModuleType("triton_python_backend_utils")
triton.Logger = None
sys.modules["triton_python_backend_utils"] = triton
from onestream.serving.models import deadline
deadline.BATCH_DEADLINE_S = 2.0
from onestream.serving.models.base import Adapter
from onestream.serving.video.model import Video

class Slow(Adapter):
    def prepare(self): pass
    def answer(self, requests):
        PyDLL(None).usleep(requests)  # keeps Python's lock
        return []

def ticking():
    video = Video.__new__(Video)
    video._stop, video._sessions = threading.Event(), {}
    video._memory = types.SimpleNamespace(look=lambda sessions: None)
    threading.Thread(target=video._tick, daemon=True).start()
    return video
"""
_HANGS = "Slow().execute(100_000_000)"
_KEEPS_THE_LOCK = "ticking(); __import__('time').sleep(0.4); PyDLL(None).sleep(100)"
_WORKS_ON = """
import time
# Within the deadline each, and together over it.
[Slow().execute(500_000) for _ in range(5)]
time.sleep(3)
# A video model that waits for work, and one that was stopped.
video = ticking()
time.sleep(3)
video._stop.set()
time.sleep(4)
# Extending changes no deadline that is longer, and begins none where no batch is worked on.
with deadline.batch_deadline(10.0):
    deadline.extend()
    time.sleep(3)
thread = threading.Thread(target=deadline.extend)
thread.start()
thread.join()
time.sleep(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "returncode"),
    [(_HANGS, -signal.SIGALRM), (_KEEPS_THE_LOCK, -signal.SIGALRM), (_WORKS_ON, 0)],
    ids=["hangs", "keeps the lock", "works on"],
)
def test_only_what_hangs_is_ended(does: str, returncode: int) -> None:
    ended = subprocess.run([sys.executable, "-c", _PROCESS + does], timeout=60, check=False)
    assert ended.returncode == returncode
