"""Child processes: ended with the thread that started them, and their ends in words. A script without packages.

Usage: ``python child_process.py PARENT_PID SIGNAL COMMAND [ARGUMENT ...]``, with the signal's number. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tied(*command: str, by: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command line that runs ``command`` until the calling thread ends; then it is sent the signal ``by``."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(by)), *command]


def describe_exit(returncode: int) -> str:
    """Say how a process ended: ``was killed (SIGKILL)`` for -9, ``exited with code 3`` for 3."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"was killed (signal {-returncode})"


def main() -> None:
    """Ask for the signal, check that the parent has not ended before that, and become the command."""
    parent_pid, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
