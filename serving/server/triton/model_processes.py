"""The model processes of a tritonserver, read from /proc.

Triton's Python backend runs every model instance in a process of its own. Triton does not wait for one that was killed,
so it stays a zombie, which tells how it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onestream.serving.child_process import describe_exit

_STUB_COMMAND = "triton_python_backend_stub"
_STUB_SHORT_NAME = _STUB_COMMAND[:15]  # the kernel cuts names


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """The kernel's facts about a process now.

    Attributes:
        pid: its id.
        parent_pid: its parent's id.
        name: the first 15 bytes of its program's name.
        start_ticks: when it started, in clock ticks since boot: with the pid, its identity.
        is_zombie: it has ended and its parent has not asked how.
        is_stopped: it was stopped by a signal and waits to be continued.
        cpu_ticks: clock ticks of CPU that it has used.
        wait_status: how a zombie ended, as ``os.wait`` gives it; 0 while it runs, or if the kernel does not tell us.
    """

    pid: int
    parent_pid: int
    name: str
    start_ticks: int
    is_zombie: bool
    is_stopped: bool
    cpu_ticks: int
    wait_status: int


def read_stat(pid: int) -> ProcessStat | None:
    """Read a process's state; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        parent_pid=int(fields[1]),
        name=name,
        start_ticks=int(fields[19]),
        is_zombie=fields[0] in "ZX",
        is_stopped=fields[0] == "T",
        cpu_ticks=int(fields[11]) + int(fields[12]),
        wait_status=int(fields[49]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProcess:
    """A process, and no later one with the same id.

    Attributes:
        pid: its id.
        start_ticks: when it started, in clock ticks since boot.
    """

    pid: int
    start_ticks: int

    def ending(self) -> str | None:
        """Say how it ended, or None while it runs."""
        stat = read_stat(self.pid)
        if stat is None or stat.start_ticks != self.start_ticks:
            return "ended"
        if not stat.is_zombie:
            return None
        return describe_exit(os.waitstatus_to_exitcode(stat.wait_status))

    def kill(self) -> None:
        """Kill it, unless it has ended or is another user's."""
        if self.ending() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Tell whether a signal stopped it, so that it does nothing until it is continued."""
        stat = read_stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and stat.is_stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProcess(KnownProcess):
    """A process that runs one instance of a model.

    Attributes:
        model: the model's name.
        instance: the instance's name, unique in a server but for a model that is being replaced.
        region: name of the shared memory region between it and Triton.
    """

    model: str
    instance: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProcesses:
    """A server's model processes at one moment.

    Attributes:
        running: those that run.
        dead_pids: those that ended and that Triton has not waited for.
    """

    running: tuple[ModelProcess, ...]
    dead_pids: frozenset[int]


def find_model_processes(triton_pid: int) -> ModelProcesses:
    """Find the model processes among the children of a tritonserver."""
    running: list[ModelProcess] = []
    dead: set[int] = set()
    for entry in os.listdir("/proc"):
        stat = read_stat(int(entry)) if entry.isdigit() else None
        if stat is None or stat.parent_pid != triton_pid or stat.name != _STUB_SHORT_NAME:
            continue
        if stat.is_zombie:
            dead.add(stat.pid)
            continue
        process = _identify(stat)
        if process is not None:
            running.append(process)
    return ModelProcesses(running=tuple(running), dead_pids=frozenset(dead))


def running_processes() -> Iterator[tuple[KnownProcess, list[str]]]:
    """Every process of this machine that has not ended, with its command line."""
    for entry in os.listdir("/proc"):
        stat = read_stat(int(entry)) if entry.isdigit() else None
        if stat is not None and not stat.is_zombie:
            yield KnownProcess(pid=stat.pid, start_ticks=stat.start_ticks), _command_line(stat.pid)


def region_of(arguments: list[str]) -> str | None:
    """The shared memory region in the command line of a model process; None for that of another program."""
    is_stub = len(arguments) >= 9 and arguments[0].endswith(_STUB_COMMAND)
    return arguments[2] if is_stub else None


def _command_line(pid: int) -> list[str]:
    """Read a process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _identify(stat: ProcessStat) -> ModelProcess | None:
    """Read a model process's command line: stub, model file, region, 5 numbers and paths, instance, folder."""
    arguments = _command_line(stat.pid)
    region = region_of(arguments)
    if region is None:
        return None
    return ModelProcess(
        pid=stat.pid,
        start_ticks=stat.start_ticks,
        model=Path(arguments[1]).parent.parent.name,
        instance=arguments[8],
        region=region,
    )
