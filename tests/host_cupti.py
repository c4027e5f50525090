"""CUPTI in host memory: activity records of what the GPU made of host memory does."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from typing import Any

from host_work import LISTENERS, Activity

_SYNCHRONIZATION, _CONCURRENT_KERNEL = 38, 10
_TYPES = {"event": 1, "stream": 3, "context": 4}


class HostCupti(types.ModuleType):
    """The module ``cupti.cupti``, of which the calls that ``cuda_waits.Tracer`` makes."""

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self._enabled: set[int] = set()
        self._waiting: list[Any] = []
        self._completed: Callable[[list[Any]], None] = lambda _records: None
        self.get_timestamp = time.monotonic_ns
        self.activity_enable, self.activity_disable = self._enabled.add, self._enabled.discard
        LISTENERS.append(self._note)

    def activity_register_callbacks(self, _requested: Any, completed: Callable[[list[Any]], None]) -> None:
        self._completed = completed

    def activity_flush_all(self, _flag: int) -> None:
        records, self._waiting = self._waiting, []
        self._completed(records)

    def _note(self, activity: Activity) -> None:
        kind = _CONCURRENT_KERNEL if activity.kind == "kernel" else _SYNCHRONIZATION
        if kind in self._enabled:
            self._waiting.append(
                types.SimpleNamespace(
                    kind=kind, type=_TYPES.get(activity.kind), name=activity.name, stream_id=activity.stream,
                    start=activity.start_ns, end=activity.end_ns,
                )
            )  # fmt: skip


def install() -> None:
    """Put it in the place of CUPTI."""
    package = types.ModuleType("cupti")
    package.cupti = HostCupti()  # type: ignore[attr-defined]
    sys.modules["cupti"], sys.modules["cupti.cupti"] = package, package.cupti
