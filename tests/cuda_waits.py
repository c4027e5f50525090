"""Which calls make the host wait for the GPU, by CUPTI's activity records, and which library makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

OURS = "onestream: Stream.sync"
ELSEWHERE = "elsewhere"
QUERY = "onestream: Event.done"
"""CUPTI records a query of an event as a wait for it, too."""
LIBRARY_CALLS = ("nvimgcodec.Decoder.decode", "nvimgcodec.Image.cuda")
"""The calls that wait by themselves; docs/gpu.md says how often. CV-CUDA takes part in no resize that is exact."""
DECODERS = ("jpeg", "huffman", "idct", "decode")
"""In names of kernels. JPEGs are decoded on streams of their own, which events tie to the batch's."""

_SYNCHRONIZATION, _CONCURRENT_KERNEL = 38, 10  # CUPTI_ACTIVITY_KIND_* in cupti_activity.h
# CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_*, but a stream's wait for an event.
_WAITS = {1: "event", 3: "stream", 4: "context"}
_BUFFER_BYTES = 8 * 1024 * 1024


class Window(NamedTuple):
    """When a call ran, by CUPTI's clock."""

    caller: str
    began: int
    ended: int


@dataclass
class Trace:
    """What happened between two flushes.

    ``waits`` counts host synchronizations by (caller, kind); the caller is the shortest of the windows in which one
    began, ``ELSEWHERE`` outside them. ``kernel_streams`` counts kernels by (name, CUPTI's stream id).
    """

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernel_streams: Counter[tuple[str, int]] = field(default_factory=Counter)

    def check(self, record: Callable[..., None], what: str, *, ours: int) -> None:
        """That we wait as often as we must, else only the libraries, and all but decoding is on one stream; note it."""
        record(f"{what}: host waits of our own for a batch", self.waits_of(OURS), str(ours))
        assert self.waits_of(OURS) == ours
        for (caller, kind), count in sorted(self.waits.items()):
            if caller != OURS:
                record(f"{what}: host waits in {caller} for a batch: {kind}", count, "listed")
        # What is not in one of these calls is a mistake of ours or of the engine.
        assert {caller for caller, _ in self.waits} - {OURS} <= set(LIBRARY_CALLS), self.waits
        streams = set()
        for (kernel, stream), count in sorted(self.kernel_streams.items()):
            record(f"{what}: launches of {kernel[:60]} on stream {stream}", count, "listed")
            if not any(part in kernel.lower() for part in DECODERS):
                streams.add(stream)
        record(f"{what}: streams on which all but decoding ran", len(streams), "1")
        assert len(streams) == 1, self.kernel_streams

    def waits_of(self, caller: str) -> int:
        """All waits of a caller."""
        return sum(count for (name, _), count in self.waits.items() if name == caller)


def attributed(records: Iterable[Any], windows: Iterable[Window]) -> Trace:
    """Count CUPTI's records by the calls in which they began."""
    trace, known = Trace(), list(windows)
    for record in records:
        if record.kind == _SYNCHRONIZATION and record.type in _WAITS:
            inside = [(one.ended - one.began, one.caller) for one in known if one.began <= record.start <= one.ended]
            caller = min(inside)[1] if inside else ELSEWHERE
            if caller != QUERY:
                trace.waits[caller, _WAITS[record.type]] += 1
        elif record.kind == _CONCURRENT_KERNEL:
            trace.kernel_streams[record.name, record.stream_id] += 1
    return trace


class Tracer:
    """CUPTI's activity records of synchronizations and kernels; ``tracer`` gives the one of this process."""

    def __init__(self) -> None:
        from cupti import cupti

        self._cupti = cupti
        self._windows: list[Window] = []
        self._records: list[Any] = []
        cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._records.extend)

    @contextmanager
    def window(self, caller: str) -> Iterator[None]:
        """Attribute what begins inside to ``caller``."""
        began = self._cupti.get_timestamp()
        try:
            yield
        finally:
            self._windows.append(Window(caller, began, self._cupti.get_timestamp()))

    def named(self, caller: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with everything inside attributed to ``caller``."""

        def wrapped(*args: Any, **options: Any) -> Any:
            with self.window(caller):
                return function(*args, **options)

        return wrapped

    def watch(self, patch: Any, modules: dict[str, Any]) -> None:
        """Attribute what begins inside ``LIBRARY_CALLS`` of modules by their names; ``patch`` is a MonkeyPatch."""
        for call in LIBRARY_CALLS:
            module, kind, name = call.split(".")
            owner = getattr(modules[module], kind)
            patch.setattr(owner, name, self.named(call, getattr(owner, name)))

    def start(self) -> None:
        """Begin to record."""
        for kind in (_SYNCHRONIZATION, _CONCURRENT_KERNEL):
            self._cupti.activity_enable(kind)
        self._cupti.activity_flush_all(1)
        self._records.clear()
        self._windows.clear()

    def stop(self) -> Trace:
        """What was recorded since ``start``."""
        self._cupti.activity_flush_all(1)
        for kind in (_SYNCHRONIZATION, _CONCURRENT_KERNEL):
            self._cupti.activity_disable(kind)
        return attributed(self._records, self._windows)


@cache
def tracer() -> Tracer:
    """The tracer of this process, of which there can be one."""
    return Tracer()
