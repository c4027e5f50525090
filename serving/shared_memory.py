"""Names of the shared memory regions that a server makes, so that it can remove its own and only its own.

A prefix names its owner: ``onestream-NAMESPACE-PID-START-NUMBER-``. The namespace of process ids tells containers that
share /dev/shm apart; the start time tells a process from a later one with the same id.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from pathlib import Path

from serving.processes import read_stat

SHM_FOLDER = Path("/dev/shm")

_numbers = itertools.count()
_PREFIX = re.compile(r"onestream-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<start>\d+)-\d+-")


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def new_region_prefix() -> str:
    """Make a prefix that belongs to this process and to no other server in it."""
    own = read_stat(os.getpid())
    assert own is not None
    return f"onestream-{_pid_namespace()}-{own.pid}-{own.start_ticks}-{next(_numbers)}-"


def remove_regions(prefix: str) -> int:
    """Remove every region whose name begins with ``prefix``; return how many."""
    return sum(remove_region(path.name, prefix=prefix) for path in SHM_FOLDER.glob(f"{prefix}*"))


def remove_region(name: str, *, prefix: str) -> bool:
    """Remove one region if its name begins with ``prefix``; tell whether it was there."""
    if not name.startswith(prefix):
        return False
    try:
        (SHM_FOLDER / name).unlink()
    except OSError:
        return False
    return True


def remove_orphaned_regions() -> int:
    """Remove the regions of servers of ours whose process is gone; return how many."""
    namespace = _pid_namespace()
    removed = 0
    with contextlib.suppress(OSError):
        for path in SHM_FOLDER.iterdir():
            owner = _PREFIX.match(path.name)
            if owner is None or owner["namespace"] != namespace:
                continue
            process = read_stat(int(owner["pid"]))
            if process is None or process.start_ticks != int(owner["start"]):
                removed += remove_region(path.name, prefix=owner[0])
    return removed
