"""What the supervisor takes for silence, and how long it waits before a restart, without Triton."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from patience import wait_until

from onestream.serving.server.supervisor import RestartPolicy
from onestream.serving.server.triton.control import ControlError
from onestream.serving.server.triton.hangs import HangWatch
from onestream.serving.server.triton.liveness import SILENCE_S, Liveness
from onestream.serving.server.triton.model_processes import ModelProcess, read_stat


def test_a_process_whose_threads_never_run_is_silent() -> None:
    watch = HangWatch()
    # As Triton's own thread does in every model process.
    wakes_up = "import time\nwhile True: time.sleep(0.3)"
    with subprocess.Popen(["sleep", "600"]) as asleep, subprocess.Popen([sys.executable, "-c", wakes_up]) as awake:
        try:
            silent, runs = (
                ModelProcess(pid=p.pid, start_ticks=stat.start_ticks, model="m", instance="i", region="r")
                for p in (asleep, awake)
                if (stat := read_stat(p.pid))
            )
            complaints = set()

            def is_found() -> bool:
                complaints.add(watch.why_hung(runs))
                return watch.why_hung(silent) is not None

            wait_until(is_found)
            assert watch.why_hung(silent) == "gave no sign of life for 1 s"
            assert complaints == {None}
        finally:
            asleep.kill()
            awake.kill()


def test_only_a_server_that_leaves_several_questions_unanswered_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onestream.serving.server.triton.liveness._PAUSE_S", 0.01)
    asked: list[float] = []
    answering = threading.Event()

    def ask(timeout_s: float) -> None:
        asked.append(timeout_s)
        if not answering.is_set():
            raise ControlError("no answer")

    watch = Liveness(ask)
    try:
        wait_until(lambda: watch.is_silent)
        assert sum(asked[:4]) == SILENCE_S
        answering.set()
        wait_until(lambda: not watch.is_silent)
    finally:
        watch.close()


def test_delays_between_restarts_grow_to_a_limit() -> None:
    policy = RestartPolicy(longest_delay_s=2.0)
    assert [policy.delay_s(recent) for recent in range(8)] == [0, 0, 0.25, 0.5, 1, 2, 2, 2]
