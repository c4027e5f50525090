"""Many calls in flight at once, their results in the order of the inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


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
