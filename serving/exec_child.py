"""Runs a command that the kernel kills when this program's parent thread ends. A script; it needs no packages.

Usage: ``python exec_child.py PARENT_PID COMMAND [ARGUMENT ...]``. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, check that the parent has not ended before that, and become the command."""
    parent_pid, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
