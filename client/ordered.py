"""Many calls in flight at once, their results in the order of the inputs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from onestream.client.errors import OnestreamError
from onestream.client.kinds.base import ResultT

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Item(Generic[ResultT]):
    """The outcome for one image of many: exactly one of ``result`` and ``error`` is set.

    ``index`` counts the images from 0, ``source`` is the object that was given.
    """

    index: int
    source: object
    result: ResultT | None = None
    error: OnestreamError | None = None

    def __post_init__(self) -> None:
        if (self.result is None) == (self.error is None):
            raise ValueError("an Item holds either a result or an error, exactly one of them")

    def unwrap(self) -> ResultT:
        """The result, or the error raised."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


def map_in_order(function: Callable[[_T], _R], items: Iterable[_T], *, in_flight: int) -> Iterator[_R]:
    """``function(item)`` for every item, in order, with up to ``in_flight`` calls running in threads.

    ``items`` is read in the caller's thread, only when a result is asked for, and never more than
    ``in_flight`` items ahead of the results handed out. A result that is ready is handed out before another
    item is read, so a slow source delays nothing but itself. When reading ``items`` raises, the results of
    the items before come first, then the error. When the iteration is left early, the calls
    in flight end on their own.
    """
    pending: deque[Future[_R]] = deque()
    source_error: Exception | None = None
    source = iter(items)
    executor = ThreadPoolExecutor(in_flight, thread_name_prefix="onestream-client")
    try:
        while True:
            while pending and (len(pending) >= in_flight or pending[0].done()):
                yield pending.popleft().result()
            try:
                item = next(source)
            except StopIteration:
                break
            except Exception as error:
                source_error = error
                break
            pending.append(executor.submit(function, item))
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(wait=False)
    if source_error is not None:
        raise source_error


async def map_in_order_aio(
    function: Callable[[_T], Awaitable[_R]], items: AsyncGenerator[_T, None], *, in_flight: int
) -> AsyncGenerator[_R, None]:
    """As ``map_in_order``, with up to ``in_flight`` tasks, of what is asynchronous.

    While an asynchronous source is waited for, results are still handed out. When the iteration is left early, or
    the task that iterates is cancelled, the calls in flight are cancelled.
    """
    pending: deque[asyncio.Task[_R]] = deque()
    reading: asyncio.Task[_T] | None = None
    source_error: BaseException | None = None
    ended = False
    try:
        while True:
            while pending and pending[0].done():
                yield pending.popleft().result()
            if reading is None and not ended and len(pending) < in_flight:
                reading = asyncio.ensure_future(items.__anext__())
            awaited: set[asyncio.Task[_R] | asyncio.Task[_T]] = {*list(pending)[:1], *([reading] if reading else [])}
            if not awaited:
                break
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                source_error = reading.exception()
                ended = source_error is not None
                if not ended:
                    pending.append(asyncio.ensure_future(function(reading.result())))
                reading = None
    finally:
        unfinished = [*pending, *([reading] if reading else [])]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        await items.aclose()
    if source_error is not None and not isinstance(source_error, StopAsyncIteration):
        raise source_error


numbered = enumerate


async def numbered_aio(items: Iterable[_T] | AsyncIterable[_T]) -> AsyncGenerator[tuple[int, _T], None]:
    """``enumerate``, also of what is asynchronous."""
    if isinstance(items, AsyncIterable):
        index = 0
        async for item in items:
            yield index, item
            index += 1
    else:
        for numbered in enumerate(items):
            yield numbered
