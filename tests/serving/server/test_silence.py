"""What the supervisor takes for silence, and how long it waits before a restart, without Triton."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest
from patience import wait_until

from onestream.serving.server.supervisor import RestartPolicy
from onestream.serving.server.triton import hangs
from onestream.serving.server.triton.control import ControlError
from onestream.serving.server.triton.hangs import SILENCE_S, HangWatch, Liveness
from onestream.serving.server.triton.model_processes import ModelProcess, read_stat


def test_a_process_whose_threads_never_run_is_silent() -> None:
    watch = HangWatch()
    # As Triton's own thread does in every model process.
    beside = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    programs = (f"{beside}time.sleep(600)", f"{beside}while True: time.sleep(0.3)", "__import__('time').sleep(600)")
    with ExitStack() as started:
        processes = [started.enter_context(subprocess.Popen([sys.executable, "-c", one])) for one in programs]
        for process in processes:
            started.callback(process.kill)
        wait_until(lambda: all(len(os.listdir(f"/proc/{process.pid}/task")) == 2 for process in processes[:2]))
        silent, runs, starts = (
            ModelProcess(pid=p.pid, start_ticks=stat.start_ticks, model="m", instance="i", region="r")
            for p in processes
            if (stat := read_stat(p.pid))
        )
        complaints = set()

        def is_found() -> bool:
            # One with a single thread has not come to the one that wakes up.
            complaints.update({watch.why_hung(runs), watch.why_hung(starts)})
            return watch.why_hung(silent) is not None

        wait_until(is_found)
        assert watch.why_hung(silent) == "gave no sign of life for 1 s"
        assert complaints == {None}


@pytest.mark.parametrize(("program", "is_stalled"), [("while True: pass", False), ("time.sleep(600)", True)])
def test_a_tritonserver_that_loads_a_network_itself_is_not_stalled(
    monkeypatch: pytest.MonkeyPatch, program: str, is_stalled: bool
) -> None:
    """It has no model process then, and may log nothing for minutes."""
    monkeypatch.setattr(hangs, "STALLED_S", 1.0)
    monkeypatch.setattr(hangs, "_IDLE_CPU_S", 0.02)
    with subprocess.Popen([sys.executable, "-c", f"import time; print(flush=True)\n{program}"], stdout=-1) as process:
        try:
            process.stdout.readline()
            watch, until = HangWatch(), time.monotonic() + 1.5
            found = [watch.is_stalled("", [process.pid])]
            while time.monotonic() < until:
                time.sleep(0.05)
                found.append(watch.is_stalled("", [process.pid]))
        finally:
            process.kill()
    assert any(found) == is_stalled


def test_only_a_server_that_leaves_several_questions_unanswered_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onestream.serving.server.triton.hangs._PAUSE_S", 0.01)
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
