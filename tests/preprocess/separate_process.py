"""Runs a backend on many files in a process of its own, so that a crash is a failed test and memory can be measured.

Each process is forked from one that has imported the backends already.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.preprocess import BadImage, Definition, compile

Outcome = npt.NDArray[np.uint8] | BadImage
LIMIT_S = 300
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["onestream.preprocess.backends.dali", "onestream.preprocess.backends.reference"])


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
    max_batch_size: int = 1,
    warm_up: Sequence[bytes] = (),
    free_mib: int | None = None,
) -> Report:
    """Run files, one call for each ``max_batch_size`` of them; fails with the signal where the process dies.

    ``free_mib`` is how much more address space the process may take after the warm-up.
    """
    answers, answer = _PROCESSES.Pipe(duplex=False)
    job = (answer, files, definition, backend, max_batch_size, warm_up, free_mib)
    process = _PROCESSES.Process(target=_work, args=job, daemon=True)
    process.start()
    answer.close()
    try:
        assert answers.poll(LIMIT_S), f"no answer for {LIMIT_S} s"
        report: Report = answers.recv()
    except EOFError:
        process.join(LIMIT_S)
        raise AssertionError(f"the process ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    return report


def _highest_resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _work(
    answer: Connection,
    files: Sequence[bytes],
    definition: Definition,
    backend: str,
    max_batch_size: int,
    warm_up: Sequence[bytes],
    free_mib: int | None,
) -> None:
    compiled = compile(definition, backend=backend, max_batch_size=max_batch_size, threads=1)
    compiled.run(warm_up)
    unbounded = resource.getrlimit(resource.RLIMIT_AS)
    if free_mib is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        allowed = pages * resource.getpagesize() + free_mib * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (allowed, unbounded[1]))
    before = _highest_resident_mib()
    outcomes: list[Outcome] = []
    for first in range(0, len(files), max_batch_size):
        outcomes += compiled.run(files[first : first + max_batch_size])
    grown_mib = _highest_resident_mib() - before
    # To send the report may take more than is left.
    resource.setrlimit(resource.RLIMIT_AS, unbounded)
    answer.send(Report(outcomes, grown_mib))
