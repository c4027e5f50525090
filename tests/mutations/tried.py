"""One run of tests in a copy of the repository, and what came of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tree_copy import environment

Outcome = Literal["found", "not found", "timed out", "error"]

_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+\.py(?P<inside>::.+?)?)(?: - .*)?$", re.MULTILINE)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_MARK = "ONESTREAM_MUTATION"
"""A variable by which every process of a run is known, in whatever session it is."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a run.

    ``outcome``: *found* where a test failed, the first of which is ``test``; *not found* where all passed; *timed out*;
    *error* where the tests could not be collected, or none was run. ``said`` is the end of pytest's output.
    """

    outcome: Outcome
    test: str
    seconds: float
    said: str


def run_tests(folder: Path, tests: tuple[str, ...], *, slow: bool, timeout_s: float) -> Tried:
    """Run tests in a copy until the first one fails; after ``timeout_s`` seconds, and at the end, its processes go."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--color=no"]
    command += ["-m", "not night" if slow else "not slow and not night", *tests]
    mark = uuid.uuid4().hex
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder) | {_MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill(process, mark)
        seconds = time.monotonic() - began
        output.seek(0)
        said = _ESCAPES.sub("", output.read().decode(errors="replace"))
    return _judged(code, said, seconds)


def _judged(code: int | None, said: str, seconds: float) -> Tried:
    tail = "\n".join(said.splitlines()[-30:])
    if code is None:
        return Tried("timed out", "", seconds, tail)
    if code == 0:
        # A file of which every test was skipped has shown nothing.
        return Tried("not found" if re.search(r"\b\d+ passed\b", said) else "error", "", seconds, tail)
    failed = _SUMMARY.search(said)
    if code == 1 and failed is not None and failed["inside"]:
        return Tried("found", failed["test"], seconds, tail)
    return Tried("error", "", seconds, tail)


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a run's group of processes, and those of its processes that have left the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    marked = f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marked in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
