"""Runs a command to which the kernel sends a signal when this program's parent thread ends. A script without packages.

Usage: ``python exec_child.py PARENT_PID SIGNAL COMMAND [ARGUMENT ...]``, with the signal's number. Linux only.
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


def main() -> None:
    """Ask for the signal, check that the parent has not ended before that, and become the command."""
    parent_pid, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
