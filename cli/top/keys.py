"""Waits in a terminal until *q* is pressed or time is up."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDS = b"qQ"


@contextmanager
def waiting() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for seconds, and tells whether q was pressed meanwhile.

    Keys come one by one and are not shown; the terminal is as before at the end. Where standard input is no terminal,
    it only waits. SIGTERM, as from ``timeout``, becomes a KeyboardInterrupt, or the terminal would not be given back.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not sys.stdin.isatty():
        yield sleep
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        # Ctrl-C stays an interrupt.
        tty.setcbreak(descriptor)
        yield lambda seconds: _wait_for_key(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def sleep(seconds: float) -> bool:
    """Wait where there are no keys: no q was pressed."""
    time.sleep(seconds)
    return False


def _wait_for_key(descriptor: int, seconds: float) -> bool:
    until_s = time.monotonic() + seconds
    while True:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, until_s - time.monotonic()))
        if not readable:
            return False
        pressed = os.read(descriptor, 64)
        # Nothing is read where the terminal is gone.
        if not pressed or any(key in _ENDS for key in pressed):
            return True
