"""A model process that works on one batch for too long is ended by the kernel; one that works on is not."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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
