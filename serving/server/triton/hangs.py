"""Finds model processes that have not ended and do not run, and a tritonserver that does not answer.

Triton takes a process for unhealthy that gives no sign of life for a second: it fails the process's requests and takes
back the memory that they shared. When such a process goes on, it writes into that memory, which ends tritonserver. The
sign is a thread of the process that wakes up every 0.3 s (python_backend, ``Stub::UpdateHealth``), so a process whose
threads the kernel has not run for a second is one of these. A process that just starts has one thread, and Triton waits
for it. A tritonserver that hangs keeps its ports open and its processes alive.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from onestream.serving.server.triton.control import ControlError
from onestream.serving.server.triton.model_processes import ModelProcess, read_stat

_SILENT_S = 1.0
_LOOK_S = 0.1
# After two waits of the thread with the sign, some other thread may have been the one that was looked at.
_LOOK_AROUND_S = 0.6
# A watcher that was stopped itself, or starved, has not looked often enough to tell.
_LOOKS = 5

STALLED_S = 90.0
_IDLE_CPU_S = 0.5
"""What tritonserver and the threads with the sign of all processes take in that time is less."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_QUESTION_TIMEOUT_S = 5.0
_UNANSWERED = 4
_PAUSE_S = 1.0

SILENCE_S = _QUESTION_TIMEOUT_S * _UNANSWERED
"""So long a busy tritonserver may leave the simplest question unanswered. Each of several questions must time out, so
that a pause of this process itself, after which one does, counts for nothing."""


@dataclass(slots=True)
class _Pulse:
    """A count of how often threads of a process ran, and the time when it last grew.

    ``thread`` is the one that was seen to run last, and the first to be looked at; ``looks`` counts looks since then.
    """

    seen_at: float
    looked_at: float
    switches: dict[int, int]
    thread: int
    looks: int = 0

    def look(self, pid: int, now: float) -> None:
        """Compare with what the kernel says now."""
        self.looked_at = now
        self.looks += 1
        current = {self.thread: _switches(pid, self.thread)}
        if now - self.seen_at > _LOOK_AROUND_S and current[self.thread] == self.switches.get(self.thread):
            current = _all_switches(pid)
        ran = [thread for thread, count in current.items() if count != self.switches.get(thread)]
        if ran:
            self.seen_at, self.looks, self.thread = now, 0, ran[-1]
            self.switches.update(current)


class HangWatch:
    """Watches processes that it is asked about often. For one thread."""

    def __init__(self) -> None:
        self._pulses: dict[int, _Pulse] = {}
        self._progress, self._progress_at = (0, 0), time.monotonic()
        self.killed: set[int] = set()
        """Those that did nothing and were ended for it, by their numbers."""

    def kill_hung(self, processes: Iterable[ModelProcess]) -> None:
        """End the processes that hang."""
        for process in processes:
            if self.why_hung(process) is not None:
                self.killed.add(process.pid)
                process.kill()

    def is_stalled(self, log: str, pids: Iterable[int]) -> bool:
        """Whether the processes that load have not worked for ``STALLED_S``, and nothing was logged, so that none will.

        One of them is tritonserver itself, where the backends of ONNX Runtime and TensorRT are.
        """
        now, (length, ticks) = time.monotonic(), self._progress
        current = len(log), sum(stat.cpu_ticks for pid in pids if (stat := read_stat(pid)))
        if current[0] != length or abs(current[1] - ticks) > _IDLE_CPU_S * _TICKS_PER_S:
            self._progress, self._progress_at = current, now
        return now - self._progress_at > STALLED_S

    def why_hung(self, process: ModelProcess) -> str | None:
        """Say how a process that has not ended came to do nothing; None for one that runs or has ended."""
        stat = read_stat(process.pid)
        if stat is None or stat.start_ticks != process.start_ticks or stat.is_zombie:
            self._pulses.pop(process.pid, None)
            return None
        if stat.is_stopped:
            return "was stopped by a signal"
        return f"gave no sign of life for {_SILENT_S:g} s" if self._is_silent(process.pid) else None

    def _is_silent(self, pid: int) -> bool:
        now = time.monotonic()
        pulse = self._pulses.get(pid)
        if pulse is None:
            pulse = self._pulses[pid] = _Pulse(seen_at=now, looked_at=now, switches=_all_switches(pid), thread=pid)
        if now - pulse.looked_at >= _LOOK_S:
            pulse.look(pid, now)
        return now - pulse.seen_at > _SILENT_S and pulse.looks >= _LOOKS and _has_sign(pid)


def _has_sign(pid: int) -> bool:
    """Whether the process has more threads than its first."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _all_switches(pid: int) -> dict[int, int]:
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    return {thread: _switches(pid, thread) for thread in threads}


def _switches(pid: int, thread: int) -> int:
    """The number of times that the kernel switched to a thread or away; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches:" in line)


class Liveness:
    """Asks a server again and again, in a thread, from the start until ``close``.

    Args:
        ask: returns when the server has answered that it is alive, and raises ControlError after the given seconds.
    """

    def __init__(self, ask: Callable[[float], None]) -> None:
        self._ask = ask
        self._unanswered = 0
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="liveness", daemon=True).start()

    @property
    def is_silent(self) -> bool:
        """Whether no question of the last ``SILENCE_S`` seconds was answered."""
        return self._unanswered >= _UNANSWERED

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                self._ask(_QUESTION_TIMEOUT_S)
            except ControlError:
                self._unanswered += 1
            else:
                self._unanswered = 0
            self._closed.wait(_PAUSE_S)
