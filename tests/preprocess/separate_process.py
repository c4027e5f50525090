"""Runs a backend on many files in a process of its own, so that a crash is a failed test and memory can be measured.

As a program it reads a pickled ``Job`` from standard input and writes a pickled ``Report`` to standard output.
"""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.preprocess import BadImage, Definition, Limits, compile

Outcome = npt.NDArray[np.uint8] | BadImage


@dataclass(frozen=True)
class Job:
    definition: Definition
    backend: str
    files: Sequence[bytes]
    limits: Limits
    max_batch_size: int
    warm_up: Sequence[bytes]
    free_mib: int | None


@dataclass(frozen=True)
class Report:
    outcomes: list[Outcome]
    grown_mib: float
    """By how much the files, after the warm-up, raised the highest resident memory."""


def run_separately(
    files: Sequence[bytes],
    *,
    definition: Definition,
    backend: str,
    limits: Limits | None = None,
    max_batch_size: int = 1,
    warm_up: Sequence[bytes] = (),
    free_mib: int | None = None,
) -> Report:
    """Run files, one call for each ``max_batch_size`` of them; fails with the signal where the process dies.

    ``free_mib`` is how much more address space the process may take after the warm-up.
    """
    job = Job(definition, backend, files, limits or Limits(), max_batch_size, warm_up, free_mib)
    done = subprocess.run(
        [sys.executable, __file__],
        input=pickle.dumps(job),
        capture_output=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"process ended with {done.returncode}: {done.stderr[-2000:].decode(errors='replace')}"
    report: Report = pickle.loads(done.stdout)
    return report


def _highest_resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _work(job: Job) -> Report:
    compiled = compile(
        job.definition, backend=job.backend, limits=job.limits, max_batch_size=job.max_batch_size, threads=1
    )
    compiled.run(job.warm_up)
    if job.free_mib is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        allowed = pages * resource.getpagesize() + job.free_mib * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    before = _highest_resident_mib()
    outcomes: list[Outcome] = []
    for first in range(0, len(job.files), job.max_batch_size):
        outcomes += compiled.run(job.files[first : first + job.max_batch_size])
    return Report(outcomes, _highest_resident_mib() - before)


if __name__ == "__main__":
    # Importing by name makes the pickled classes those that the test knows.
    import separate_process

    report = separate_process._work(pickle.load(sys.stdin.buffer))
    sys.stdout.buffer.write(pickle.dumps(report))
