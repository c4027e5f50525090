"""Samples that are read a block at a time, with the blocks that were read last in memory."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")
KEPT_BYTES = 256 << 20
"""Of blocks, in each process."""


class RecentBlocks(Generic[T]):
    """The blocks that were read last, up to ``max_bytes`` of them, and at least one.

    ``read`` gives a block by its number, and its bytes. However many threads ask for a block, it is read once. Each
    process has its own.
    """

    def __init__(self, read: Callable[[int], tuple[T, int]], max_bytes: int) -> None:
        self._read, self._max_bytes = read, max_bytes
        self._begin()

    def __getitem__(self, number: int) -> T:
        """A block. Raises what ``read`` raises."""
        if os.getpid() != self._pid:
            self._begin()
        with self._lock:
            found = self._blocks.get(number)
            reads = found is None
            if found is None:
                found = self._blocks[number] = Future()
            self._blocks.move_to_end(number)
        if reads:
            self._fill(number, found)
        return found.result()

    def _fill(self, number: int, block: Future[T]) -> None:
        try:
            content, size = self._read(number)
        except BaseException as error:
            with self._lock:
                self._blocks.pop(number, None)
            block.set_exception(error)
            return
        block.set_result(content)
        with self._lock:
            self._sizes[number] = size
            while sum(self._sizes.values()) > self._max_bytes and len(self._sizes) > 1:
                oldest = next(one for one in self._blocks if one in self._sizes)
                del self._blocks[oldest], self._sizes[oldest]

    def _begin(self) -> None:
        # A lock may be held in the process that was forked.
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._blocks: OrderedDict[int, Future[T]] = OrderedDict()
        self._sizes: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {"_read": self._read, "_max_bytes": self._max_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process."""
        self.__dict__.update(state)
        self._begin()
