"""Broken servers: whatever they send, a call ends at its deadline or before, with an error of the client's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.hostile.broken_http import HttpCase
from benchmarks.hostile.broken_servers import Case, all_cases, call, options
from onestream.client import AsyncClient, CannotConnect, Client, OnestreamError, TimedOut, UnexpectedResponse

CASES = all_cases()
WAITING = [case for case in CASES if case.waits]
FLOODS = [
    case
    for case in CASES
    if case.name.startswith("flood")
    and case.call in ("infer", "server_info")
    and case.name.partition(": ")[2]
    in (
        *("4 GB declared", "body until the end", "chunks", "one chunk", "error of 4 GB", "error until the end"),
        *("status line", "headers", "a header", "300 MiB", "100 MiB of empty outputs", "10 MiB of a name"),
    )
]
"""Those that soon are larger than anything allowed; the others are as slow to send as to read."""
MALFORMED = [case for case in CASES if not case.waits and not case.name.startswith("flood")]
ENDS_S = 30.0
"""Within which a server hears that its connection was ended; it is told at once."""

Outcome = tuple[object, bool]
"""What a call raised or returned, and whether the server heard of the end while the client was open."""


def case_is_heard(case: Case) -> bool:
    """A raw HTTP/2 connection stays open after a call, and who reads nothing does not see an end."""
    return not (isinstance(case, HttpCase) and (case.scheme == "grpc" or case.call == "upload"))


def called(case: Case, *, timeout_s: float, hears: bool = False) -> Outcome:
    with case.running() as (url, ended), Client(url, **options(case, timeout_s)) as client:
        try:
            result = call(case, client)
        except Exception as error:
            result = error
        return result, hears and case_is_heard(case) and ended.wait(ENDS_S)


def called_async(case: Case, *, timeout_s: float, hears: bool = False) -> Outcome:
    async def main(url: str, heard: Callable[[], bool]) -> Outcome:
        async with AsyncClient(url, **options(case, timeout_s)) as client:
            try:
                result = await call(case, client)
            except Exception as error:
                result = error
            return result, hears and case_is_heard(case) and await asyncio.to_thread(heard)

    with case.running() as (url, ended):
        return asyncio.run(main(url, lambda: ended.wait(ENDS_S)))


pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("caller", [called, called_async], ids=["sync", "async"])


def outcomes(caller: Callable[..., Outcome], cases: Sequence[Case], *, at_once: int, **how: object) -> list[Outcome]:
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda case: caller(case, **how), cases))


def described(case: Case) -> str:
    return f"{case.call}, {'HTTP' if isinstance(case, HttpCase) else 'gRPC'}: {case.name}"


@BOTH
def test_what_never_ends_is_ended_by_the_deadline(caller: Callable[..., Outcome]) -> None:
    """And the server hears of it while the client is still open."""
    found = outcomes(caller, WAITING, at_once=len(WAITING), timeout_s=1.0, hears=True)
    for case, (result, heard) in zip(WAITING, found, strict=True):
        scheme = case.scheme if isinstance(case, HttpCase) else ""
        expected = CannotConnect if scheme == "https" else TimedOut
        assert isinstance(result, expected), (described(case), result)
        assert heard or not case_is_heard(case), described(case)


@BOTH
def test_what_is_malformed_is_an_error_of_the_client(caller: Callable[..., Outcome]) -> None:
    """Documents and tensors that are none are unexpected responses."""
    found = outcomes(caller, MALFORMED, at_once=8, timeout_s=30.0)
    untyped = {
        described(case): result
        for case, (result, _) in zip(MALFORMED, found, strict=True)
        if not isinstance(result, OnestreamError) or isinstance(result, TimedOut)
    }
    # A proxy may say that it, too, waited in vain.
    timeouts = {"infer, gRPC: status DEADLINE_EXCEEDED"}
    assert set(untyped) == timeouts
    names = ("document", "fields", "tensors", "results", "message")
    unexpected = [
        (case, result) for case, (result, _) in zip(MALFORMED, found, strict=True) if case.name.startswith(names)
    ]
    assert len(unexpected) > 200
    others = {described(case): result for case, result in unexpected if type(result) is not UnexpectedResponse}
    assert others == {}


@BOTH
def test_a_flood_is_refused_with_what_is_allowed(caller: Callable[..., Outcome]) -> None:
    """Where the deadline would be far: nothing but the number of bytes ends it."""
    found = outcomes(caller, FLOODS, at_once=2, timeout_s=60.0)
    others = {
        described(case): result
        for case, (result, _) in zip(FLOODS, found, strict=True)
        if not isinstance(result, UnexpectedResponse)
    }
    assert others == {}
