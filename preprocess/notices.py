"""What a definition passes over in pictures and videos, said once by each process to the logger ``onestream``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from onestream.wire.refusals import SAID_ONCE

_LOG = logging.getLogger("onestream")
_said: set[str] = set()


class _Lines(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


def send_notices_to(write: Callable[[str], None]) -> None:
    """Hand every line to ``write``, and to nobody else, from now on."""
    _LOG.handlers, _LOG.propagate = [_Lines(write)], False


def say_once(text: str) -> None:
    """Log a warning, unless this process said the same before."""
    if text not in _said:
        _said.add(text)
        _LOG.warning("%s %s", text, SAID_ONCE)
