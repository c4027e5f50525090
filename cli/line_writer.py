"""Writes lines to a stream without ever waiting for its reader."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

MOST_WAITING = 10_000
"""Lines that wait for a slow reader; those that come on top are dropped."""

_LAST_LINES_S = 2.0


class LineWriter:
    """Writes lines from a thread of its own, in their order. Any thread may call it.

    A reader that stops reading costs lines, which are counted; one that goes away costs all that follow.

    Args:
        stream: where the lines go.
        dropped: makes the line that stands in place of so many dropped ones.
    """

    def __init__(self, stream: TextIO, *, dropped: Callable[[int], str]) -> None:
        self._stream, self._dropped = stream, dropped
        self._waiting: deque[str] = deque()
        self._left_out = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="line-writer", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Have a line written, or dropped where too many wait; returns at once."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._left_out += 1
            else:
                self._append(line)

    def close(self, last: str | None = None) -> None:
        """Write a last line, which is never dropped, after all that wait; gives a stuck reader 2 seconds."""
        with self._changed:
            self._append(last)
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_LINES_S)

    def _append(self, line: str | None) -> None:
        if self._left_out:
            self._waiting.append(self._dropped(self._left_out))
            self._left_out = 0
        if line is not None:
            self._waiting.append(line)
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                line = self._waiting.popleft()
            with contextlib.suppress(OSError):  # nobody reads any more
                self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        try:
            number = self._stream.fileno()
        except OSError:  # a stream in memory
            self._stream.write(text)
            self._stream.flush()
            return
        # Not through the stream: Python aborts when it ends while a thread is stuck in one.
        left = text.encode(self._stream.encoding, "backslashreplace")
        while left:
            left = left[os.write(number, left) :]
