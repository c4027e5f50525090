"""A server without options, and what local users read of it while it starts."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patience import PATIENCE_S

from onestream.serving.server.server import Server

PASSWORD = re.compile(r"onestream-admin=(\w+)")
"""As the argument of tritonserver says it, whose form Triton prescribes."""


@contextlib.contextmanager
def passwords_seen() -> Iterator[set[str]]:
    """What a local user finds who reads every process's arguments all the time; one look is made at least."""
    found: set[str] = set()
    looked, stop = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    found.update(PASSWORD.findall((process / "cmdline").read_text(errors="replace")))
            looked.set()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
        assert looked.wait(PATIENCE_S)
    finally:
        stop.set()
        thread.join()


@dataclass(frozen=True)
class Closed:
    """A server as it is without options, what it said at its start, and the passwords that others read meanwhile."""

    server: Server
    events: list[str]
    passwords: set[str]
