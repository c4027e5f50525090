"""Runs a command and ends everything that the command started, when either it or this program's parent ends.

A script without packages, so that it is ready at once and never busy. It is the parent of tritonserver: orphaned model
processes come to it. Linux only.

Usage: ``python guard.py PREFIX REGIONS FOLDER REPORT COMMAND [ARGUMENT ...]``. ``PREFIX`` names the owner for
``onestream.serving.server.triton.orphan_cleanup``. The regions whose paths begin with ``REGIONS`` and the folder
``FOLDER`` are removed at the end. The command's process id is written to the open file descriptor ``REPORT``. SIGTERM,
which the kernel sends when the parent thread ends (``onestream.serving.child_process``), kills the command;
this program then ends in the same way as the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import resource
import shutil
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.01
_WATCHED = (signal.SIGTERM, signal.SIGCHLD)


def start_guarded(
    *command: str,
    tie: Callable[..., list[str]],
    prefix: str,
    regions: str,
    folder: str,
    environment: dict[str, str],
    output: int,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a guard, whose command line ``tie`` completes, and ``command`` under it; returns it and the command's pid.

    A guard that was killed before it reported the pid is named in its place.
    """
    import subprocess  # the script does without

    reported, report = os.pipe()
    with open(reported, encoding="ascii") as pid_line:
        try:
            guard = subprocess.Popen(
                tie(sys.executable, "-I", "-S", __file__, prefix, regions, folder, str(report), *command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[report],
            )
        finally:
            os.close(report)
        return guard, int(pid_line.readline() or guard.pid)


def guard_prefix(arguments: list[str]) -> str | None:
    """The prefix in the command line of a guard; None for that of another program."""
    is_guard = len(arguments) > 4 and os.path.basename(arguments[3]) == os.path.basename(__file__)
    return arguments[4] if is_guard else None


def main() -> None:
    """Start the command, wait for its end or for SIGTERM, end and remove what is left, and end like the command."""
    regions, folder, report, command = sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        os.close(report)
        if os.getppid() == guard:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            with contextlib.suppress(OSError):
                os.execv(command[0], command)
        os._exit(127)
    os.write(report, b"%d\n" % child)
    os.close(report)
    status = _wait(child)
    _end_children()
    for region in glob.glob(glob.escape(regions) + "*"):
        with contextlib.suppress(OSError):
            os.unlink(region)
    shutil.rmtree(folder, ignore_errors=True)
    _end_like(status)


def _wait(child: int) -> int:
    """Wait for the command, which SIGTERM kills, and return its wait status; other children are just waited for."""
    while True:
        if signal.sigwait(_WATCHED) == signal.SIGTERM:
            os.kill(child, signal.SIGKILL)
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return status
            if pid == 0:
                break


def _end_children() -> None:
    """Kill every child. The children of a killed one become this program's."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_POLL_S)


def _children() -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(entry))
    return found


def _end_like(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        # The command has dumped its memory if that is wanted.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = signal.Signals(-code)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    sys.exit(code)


if __name__ == "__main__":
    main()
