"""Commands as their user sees them, on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

from patience import PATIENCE_S


def on_terminal(command: Sequence[str], *, cwd: Path, stdout: Path) -> tuple[int, str]:
    """Run a command whose standard output is a file: its exit status, and what its standard error showed."""
    terminal, stderr = pty.openpty()
    with stdout.open("w") as file:
        process = subprocess.Popen(command, cwd=cwd, stdout=file, stderr=stderr)
    os.close(stderr)
    shown = b""
    # Read while it runs: a full terminal would stop it.
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    return process.wait(PATIENCE_S), shown.decode()
