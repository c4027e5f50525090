"""Shows running streams: a line for each."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from onestream.cli.messages import short_path
from onestream.client.video import FrameResult, Stream

_RATE_S = 3.0
_LATENCIES = 2000


@dataclass
class Row:
    """One stream."""

    stream: Stream
    frames: int = 0
    began_s: float = 0.0
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    last: str = ""

    def fps(self, now_s: float | None) -> float:
        """Results a second: of the last seconds, or of the whole stream where ``now_s`` is None."""
        if len(self.times_s) < 2:
            return 0.0
        if now_s is None:
            return (self.frames - 1) / max(self.times_s[-1] - self.began_s, 1e-9)
        recent = [at_s for at_s in self.times_s if now_s - at_s < _RATE_S]
        return (len(recent) - 1) / max(now_s - recent[0], 1e-9) if len(recent) > 1 else 0.0

    def latency_ms(self, percent: float) -> float | None:
        """A percentile of the latencies of the last results."""
        return float(np.percentile(list(self.latencies_ms), percent)) if self.latencies_ms else None


class Board:
    """Counts results, and makes the table of them. Thread-safe: the terminal is drawn by a thread of its own."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.rows = [Row(stream) for stream in streams]
        self._lock = threading.Lock()

    def add(self, index: int, frame: FrameResult, caption: str) -> None:
        """A result of stream number ``index`` came."""
        row, now_s = self.rows[index], time.monotonic()
        with self._lock:
            row.began_s = row.began_s or now_s
            row.frames += 1
            row.latencies_ms.append(frame.latency_ms)
            row.times_s.append(now_s)
            row.last = caption

    def _colors(self) -> str:
        return "\n".join(sorted({f"colours: {row.stream.color}" for row in self.rows if row.stream.color}))

    def table(self, console: Console, *, final: bool = False) -> Table:
        """One row a stream for this console, the colours below; ``final``: how it ended in place of what is seen."""
        table = Table(
            Column("stream", no_wrap=True),
            *(
                Column(name, justify="right", no_wrap=True)
                for name in ("frames", "fps", "p50 ms", "p99 ms", "dropped", "concealed")
            ),
            Column("ended" if final else "seen", overflow="fold"),
            caption=Text(self._colors()) if final else None,
            caption_justify="left",
        )
        now_s = None if final else time.monotonic()
        with self._lock:
            for row in self.rows:
                totals = row.stream.totals
                table.add_row(
                    short_path(row.stream.name, console),
                    str(row.frames),
                    f"{row.fps(now_s):.1f}",
                    *(_number(row.latency_ms(percent)) for percent in (50, 99)),
                    str(totals.dropped),
                    str(totals.concealed),
                    Text(str(row.stream.ended_reason or "") if final else row.last.splitlines()[0] if row.last else ""),
                )
        return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
