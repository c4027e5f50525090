"""Waits for a stream without blocking an event loop. No thread waits; the stream's own threads wake the loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from onestream.client.video.results import FrameResult

_LOOK_S = 0.5


class _Stream(Protocol):
    """What is waited for: see ``stream.Stream``, which has these names."""

    @property
    def is_open(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def error(self) -> Exception | None: ...
    def poll(self) -> FrameResult | None: ...
    def check(self, began_s: float) -> None: ...
    def close(self) -> None: ...
    def listening(self, wake: Callable[[], None]) -> AbstractContextManager[None]: ...


async def opened(stream: _Stream) -> None:
    """Return when source and server agreed. Raises what prevents it, after closing the stream."""
    try:
        await _until(stream, lambda: stream.is_open or (stream.finished and stream.error is None))
    except BaseException:
        await closed(stream)
        raise


async def next_result(stream: _Stream) -> FrameResult:
    """The next result. Raises StopAsyncIteration after the last, or what ended the stream."""
    found: list[FrameResult] = []

    def take() -> bool:
        result = stream.poll()
        if result is not None:
            found.append(result)
        return result is not None

    await _until(stream, lambda: take() or (stream.finished and stream.error is None))
    if not found:
        raise StopAsyncIteration
    return found[0]


async def closed(stream: _Stream) -> None:
    """End the stream; its threads are waited for elsewhere."""
    await asyncio.get_running_loop().run_in_executor(None, stream.close)


async def _until(stream: _Stream, ready: Callable[[], bool]) -> None:
    """Wait until ``ready``. Raises what ended the stream."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    began_s = time.monotonic()

    def wake() -> None:
        # A loop that is closed has nobody to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(changed.set)

    with stream.listening(wake):
        while True:
            changed.clear()
            if ready():
                return
            stream.check(began_s)
            if stream.finished:
                # It failed and was closed meanwhile, so nothing is raised and nothing will come.
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), _LOOK_S)
