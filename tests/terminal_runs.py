"""Commands as their user sees them: on a terminal, and before a reader that has gone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from patience import PATIENCE_S


def before_no_reader(*arguments: str) -> tuple[int, str]:
    """Run ``onestream`` with a closed pipe as standard output: exit status and standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "onestream", *arguments]
    with open(writing, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stderr


def on_terminal(command: Sequence[str], *, cwd: Path, stdout: Path | None = None) -> tuple[int, str]:
    """Run a command, its standard output in a file or also on the terminal: its exit status, and what was shown."""
    terminal, stderr = pty.openpty()
    with nullcontext(stderr) if stdout is None else stdout.open("w") as file:
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
