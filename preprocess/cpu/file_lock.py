"""A lock among the processes and threads of one machine, held by a file."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock of a file, which is made where it is missing, after the one that holds it; ``waiting`` is told.

    The system releases it when its holder ends, however it ends. Raises OSError.
    """
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
