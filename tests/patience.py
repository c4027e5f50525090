"""Waiting for events. How long anything takes is no test's business: only what never comes fails, after two minutes."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

Result = TypeVar("Result")

PATIENCE_S = 120.0
"""What this machine takes in seconds, a very busy one does in this time."""

NEVER_S = 1200.0
"""For limits that must not be what ends a call under test: far beyond the patience."""


def wait_until(condition: Callable[[], object], what: object = "") -> None:
    """Wait for a condition; ``what`` is told where it never comes true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)


def ended(call: Callable[[], Result]) -> Result:
    """What a call returns or raises; fails where it does not end."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([outcome], PATIENCE_S)
    assert outcome.done(), f"it did not end within {PATIENCE_S:g} s"
    return outcome.result()


def threads_named(prefix: str) -> set[threading.Thread]:
    """The threads of this process whose names begin so; those of others may come and go at any time."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(prefix)}


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run
