"""Compiled loops: what several processes do that need the same one at once, and what a process loads from the cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import wait_until

pytestmark = pytest.mark.slow

MODULE = """
from onestream.preprocess.cpu.loops import compiled

@compiled("int64(int64)")
def twice(number):
    return 2 * number

@compiled("int64[::1](int64[::1])", "int64[::1](int32[::1])")
def each_twice(numbers):
    found = numbers.astype("int64").copy()
    for index in range(len(numbers)):
        found[index] = twice(numbers[index])
    return found
"""
SAVED = 3
"""Of the module above: a function of one signature and one of two."""
PRINTED = """
import numpy as np
import loops_of_a_test
print("twice", loops_of_a_test.each_twice(np.arange(3)), loops_of_a_test.each_twice(np.arange(3, dtype=np.int32)))
"""
ANSWER = "twice [0 2 4] [0 2 4]"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Path:
    """The folder with the module and, in ``__pycache__``, its loops."""
    (tmp_path / "loops_of_a_test.py").write_text(MODULE)
    return tmp_path / "__pycache__"


def started(folder: Path, before: str = "", after: str = "") -> subprocess.Popen[str]:
    """A process that needs the loops, and says what Numba writes and reads."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    return subprocess.Popen(
        [sys.executable, "-u", "-c", before + PRINTED + after],
        cwd=folder,
        env={**environment, "NUMBA_DEBUG_CACHE": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return out.splitlines()


def saved(lines: list[str]) -> int:
    return sum("data saved" in line for line in lines)


def is_waiting(process: subprocess.Popen[str]) -> bool:
    """Whether a process waits for a lock of a file."""
    waiters = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "-> FLOCK" in line]
    return str(process.pid) in {waiter[5] for waiter in waiters}


@contextmanager
def first_loop_locked(cache: Path) -> Iterator[None]:
    cache.mkdir(exist_ok=True)
    with (cache / "loops_of_a_test.twice.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_of_processes_that_need_the_same_loops_one_compiles_them(cache: Path) -> None:
    with first_loop_locked(cache):
        processes = [started(cache.parent) for _ in range(2)]
        wait_until(lambda: all(is_waiting(process) for process in processes))
    found = [said(process) for process in processes]
    assert [ANSWER in lines for lines in found] == [True, True]
    assert sum(map(saved, found)) == SAVED


def test_a_process_that_is_killed_while_it_compiles_holds_up_no_other(cache: Path) -> None:
    never = """
import time
from numba.core.caching import FunctionCache
FunctionCache.save_overload = lambda *_: (print("compiled"), time.sleep(3600))
"""
    killed = started(cache.parent, before=never)
    assert killed.stdout is not None
    assert any(line == "compiled\n" for line in killed.stdout)
    other = started(cache.parent)
    wait_until(lambda: is_waiting(other))
    killed.kill()
    killed.communicate(timeout=60)
    lines = said(other)
    assert ANSWER in lines
    assert saved(lines) == SAVED


def test_loops_from_the_cache_need_no_compiler_s_numpy_and_one_that_is_missing_is_compiled(cache: Path) -> None:
    tell = "import sys\nprint('numba.np.arraymath' in sys.modules)"
    assert said(started(cache.parent, after=tell))[-1] == "True"
    again = said(started(cache.parent, after=tell))
    assert (ANSWER in again, again[-1], saved(again)) == (True, "False", 0)
    (missing,) = cache.glob("*each_twice*.nbi")
    missing.unlink()
    lines = said(started(cache.parent))
    assert (ANSWER in lines, saved(lines)) == (True, 2)


NO_INTERNALS = "import numba, numba.core.runtime as runtime\ndel runtime.rtsys"
NO_LOCKS = "import fcntl\ndef refuse(*_): raise OSError('no locks')\nfcntl.flock = refuse"
NO_COMPILER = "import os\nos.environ['NUMBA_DISABLE_JIT'] = '1'"


@pytest.mark.parametrize(
    ("change", "saved_at_first"),
    [(NO_INTERNALS, SAVED), (NO_LOCKS, SAVED), (NO_COMPILER, 0)],
    ids=["internals", "locks", "compiler"],
)
def test_loops_run_where_none_can_wait_and_where_nothing_is_compiled(
    cache: Path, change: str, saved_at_first: int
) -> None:
    for expected in (saved_at_first, 0):
        lines = said(started(cache.parent, before=change + "\n"))
        assert (ANSWER in lines, saved(lines)) == (True, expected)
