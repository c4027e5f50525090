"""Broken servers against the client: whether each call ends with an error of ours, in time, and with how much memory.

The client runs in a process of its own, so that its memory is measured and not the servers'. Cases that nothing but the
deadline ends run all at once; the others one after the other, each with the memory that it took.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.hostile import broken_grpc, broken_http
from onestream.client import AsyncClient, Client, OnestreamError

Case = broken_http.HttpCase | broken_grpc.GrpcCase

_GRACE_S = 0.5
"""How long after its deadline a call may end."""
_MEMORY_LIMIT_MIB = 512
"""Four times the largest answer by default, 128 MiB: what gRPC received, the message made of it and the arrays."""
_UPLOAD_BYTES = 30_000_000
_BODY_LIMIT = 1 << 30
_CALLS: dict[str, Callable[[Any], Any]] = {
    "infer": lambda client: client.infer("m", b"image"),
    "classify": lambda client: client.classify(b"image", pipeline="m"),
    "upload": lambda client: client.infer("m", bytes(_UPLOAD_BYTES)),
    "after_config": lambda client: client.infer("m", b"image"),
    "config": lambda client: client.max_body_bytes("m"),
    "statistics": lambda client: client.statistics("m"),
    "server_info": lambda client: client.server_info(),
}
_READ_THE_CONFIGURATION = ("config", "after_config", "statistics", "server_info")


@dataclass(frozen=True)
class Outcome:
    """What one call came to: the type of the error or of what was returned; ``late_s`` is after the deadline."""

    error: str
    is_typed: bool
    late_s: float
    grown_mib: float
    said: str


def all_cases() -> list[Case]:
    """Every broken server, each for one call."""
    return [*broken_http.cases(), *broken_grpc.cases()]


def options(case: Case, timeout_s: float) -> dict[str, Any]:
    """Those of the client for a case."""
    bodies = {} if case.call in _READ_THE_CONFIGURATION else {"max_body_bytes": _BODY_LIMIT}
    return {"timeout_s": timeout_s, "connect_timeout_s": 2 * timeout_s, **bodies}


def call(case: Case, client: Any) -> Any:
    """Make the call of a case with a client or, to be awaited, an asynchronous one."""
    return _CALLS[case.call](client)


def measure(*, timeout_s: float, seed: int, progress: Callable[[str], None]) -> dict[str, object]:
    """Run every case with both clients: ``timeout_s`` is each call's. The seed draws the order."""
    cases = all_cases()
    random.Random(seed).shuffle(cases)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_caller, args=[theirs], daemon=True)
    process.start()
    rows: list[dict[str, object]] = []
    try:
        for is_async in (False, True):
            kind = "async" if is_async else "sync"
            waiting = [case for case in cases if case.waits]
            progress(f"{kind}: {len(waiting)} cases that wait, all at once")
            rows += _run(ours, waiting, is_async=is_async, timeout_s=timeout_s)
            for index, case in enumerate(case for case in cases if not case.waits):
                if index % 100 == 0:
                    progress(f"{kind}: case {index}")
                rows += _run(ours, [case], is_async=is_async, timeout_s=timeout_s)
    finally:
        ours.send(None)
        process.join(10)
    return _summary(rows, timeout_s)


def _run(caller: Connection, cases: Sequence[Case], *, is_async: bool, timeout_s: float) -> list[dict[str, object]]:
    with ExitStack() as servers:
        urls = [servers.enter_context(case.running())[0] for case in cases]
        jobs = [_Job(url, case.call, options(case, timeout_s)) for url, case in zip(urls, cases, strict=True)]
        caller.send((jobs, is_async))
        outcomes: list[Outcome] = caller.recv()
    return [
        {
            "case": case.name,
            "call": case.call,
            "protocol": urls[index].partition(":")[0],
            "client": "async" if is_async else "sync",
            "waits": case.waits,
            **asdict(outcomes[index]),
        }
        for index, case in enumerate(cases)
    ]


def _summary(rows: list[dict[str, Any]], timeout_s: float) -> dict[str, object]:
    failed = [
        row for row in rows if not row["is_typed"] or row["late_s"] > _GRACE_S or row["grown_mib"] > _MEMORY_LIMIT_MIB
    ]
    kinds = sorted({str(row["error"]) for row in rows})
    return {
        "timeout_s": timeout_s,
        "cases": len({(row["protocol"], row["case"], row["call"]) for row in rows}),
        "runs": len(rows),
        "runs_by_protocol": {name: sum(row["protocol"] == name for row in rows) for name in ("http", "https", "grpc")},
        "errors": {kind: sum(row["error"] == kind for row in rows) for kind in kinds},
        "untyped": sum(not row["is_typed"] for row in rows),
        "worst_s_after_the_deadline": max(row["late_s"] for row in rows),
        "most_memory_mib": max(row["grown_mib"] for row in rows),
        "failed": failed,
        "rows": rows,
    }


def _caller(server: Connection) -> None:
    """The process of the clients: runs what it is sent until that is None."""
    while (sent := server.recv()) is not None:
        jobs, is_async = sent
        before_mib = _reset_peak_mib()
        if is_async:
            ended = asyncio.run(_await_all(jobs))
        else:
            with ThreadPoolExecutor(len(jobs)) as threads:
                ended = list(threads.map(_call, jobs))
        grown_mib = round(_peak_mib() - before_mib, 1)
        server.send([_outcome(one, grown_mib) for one in ended])


@dataclass(frozen=True)
class _Job:
    url: str
    call: str
    options: dict[str, Any]

    @property
    def timeout_s(self) -> float:
        return float(self.options["timeout_s"])


_Ended = tuple[object, float]
"""What was returned or raised, and how long after the deadline."""


def _call(job: _Job) -> _Ended:
    with Client(job.url, **job.options) as client:
        deadline = monotonic() + job.timeout_s
        try:
            result = _CALLS[job.call](client)
        except Exception as error:  # what is measured is which it is
            result = error
        return result, monotonic() - deadline


async def _await_all(jobs: Sequence[_Job]) -> list[_Ended]:
    return list(await asyncio.gather(*map(_call_async, jobs)))


async def _call_async(job: _Job) -> _Ended:
    async with AsyncClient(job.url, **job.options) as client:
        deadline = monotonic() + job.timeout_s
        try:
            result = await _CALLS[job.call](client)
        except Exception as error:  # what is measured is which it is
            result = error
        return result, monotonic() - deadline


def _outcome(ended: _Ended, grown_mib: float) -> Outcome:
    result, late_s = ended
    is_typed = isinstance(result, OnestreamError)
    return Outcome(type(result).__name__, is_typed, round(late_s, 3), grown_mib, f"{result!s:.200}")


def _reset_peak_mib() -> float:
    """Forget the most memory that this process ever had; how much it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mib()


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
