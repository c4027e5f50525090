"""Which calls make the host wait for the GPU, counted by CUPTI, and which library makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cupti import cupti

_WAITS = {
    cupti.ActivitySynchronizationType.EVENT_SYNCHRONIZE: "event",
    cupti.ActivitySynchronizationType.STREAM_SYNCHRONIZE: "stream",
    cupti.ActivitySynchronizationType.CONTEXT_SYNCHRONIZE: "context",
}
_BUFFER_BYTES = 8 * 1024 * 1024


@dataclass
class Trace:
    """What happened between two flushes.

    ``waits`` counts host synchronizations by (caller, kind); the caller is the innermost of the named windows in which
    one began, *elsewhere* outside them. ``kernel_streams`` counts kernels by (caller, CUPTI's stream id).
    """

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernel_streams: Counter[tuple[str, int]] = field(default_factory=Counter)


class Tracer:
    """CUPTI's activity records of synchronizations and kernels. One per process."""

    def __init__(self) -> None:
        self._windows: list[tuple[str, int, int]] = []
        self._records: list[Any] = []
        cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._records.extend)
        for kind in (cupti.ActivityKind.SYNCHRONIZATION, cupti.ActivityKind.CONCURRENT_KERNEL):
            cupti.activity_enable(kind)

    @contextmanager
    def window(self, caller: str) -> Iterator[None]:
        """Attribute what begins inside to ``caller``."""
        began = cupti.get_timestamp()
        try:
            yield
        finally:
            self._windows.append((caller, began, cupti.get_timestamp()))

    def named(self, caller: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with everything inside attributed to ``caller``."""

        def wrapped(*args: Any, **options: Any) -> Any:
            with self.window(caller):
                return function(*args, **options)

        return wrapped

    def start(self) -> None:
        """Forget what was recorded."""
        cupti.activity_flush_all(1)
        self._records.clear()
        self._windows.clear()

    def stop(self) -> Trace:
        """What was recorded since ``start``."""
        cupti.activity_flush_all(1)
        trace = Trace()
        for record in self._records:
            if record.kind == cupti.ActivityKind.SYNCHRONIZATION and record.type in _WAITS:
                trace.waits[self._caller(record.start), _WAITS[record.type]] += 1
            elif record.kind == cupti.ActivityKind.CONCURRENT_KERNEL:
                trace.kernel_streams[record.name, record.stream_id] += 1
        return trace

    def close(self) -> None:
        """Stop recording."""
        for kind in (cupti.ActivityKind.SYNCHRONIZATION, cupti.ActivityKind.CONCURRENT_KERNEL):
            cupti.activity_disable(kind)

    def _caller(self, at: int) -> str:
        inside = [(end - began, caller) for caller, began, end in self._windows if began <= at <= end]
        return min(inside)[1] if inside else "elsewhere"
