"""The pages in docs/: their blocks, and a shell in which their commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from patience import NEVER_S

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language in a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


class Shell:
    """Runs commands in ``folder``; ``onestream`` there is this one, with ``options`` behind its arguments."""

    def __init__(self, folder: Path, options: str = "", **variables: str) -> None:
        self.complaints = ""
        self._folder = folder
        command = folder / "bin" / "onestream"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m onestream "$@" {options}\n')
        command.chmod(0o755)
        path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables}

    def run(self, *words: str) -> str:
        """What a command that must succeed prints; ``complaints`` is what it says on standard error."""
        done = subprocess.run(
            words, cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=NEVER_S
        )
        assert done.returncode == 0, done.stderr
        self.complaints = done.stderr
        return done.stdout

    def line(self, text: str) -> str:
        """``run`` of a line of bash, all of whose commands must succeed."""
        return self.run("bash", "-c", f"set -o pipefail; {text}")


def printed_by(code: str, folder: Path = ROOT) -> list[str]:
    """The lines that a program prints which runs in a folder."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NEVER_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
