"""What a server has outside its own memory: regions in /dev/shm and a temporary folder.

Their names say whose they are, so that a server removes its own, and those of dead owners, and no others:
``onestream-NAMESPACE-PID-START-NUMBER-``. The namespace of process ids tells containers that share /dev/shm apart; the
start time tells a process from a later one with the same id.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import tempfile
from pathlib import Path

from serving.processes import read_stat

SHM_FOLDER = Path("/dev/shm")

_numbers = itertools.count()
_PREFIX = re.compile(r"onestream-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<start>\d+)-\d+-")


def new_prefix() -> str:
    """Make a prefix that belongs to this process, and to no other server in it."""
    own = read_stat(os.getpid())
    assert own is not None
    return f"onestream-{_pid_namespace()}-{own.pid}-{own.start_ticks}-{next(_numbers)}-"


def region_folder(pid: int) -> Path:
    """The /dev/shm of a process of this user, which may have one of its own (``serving.private_memory``)."""
    return Path(f"/proc/{pid}/root{SHM_FOLDER}")


def remove_regions(prefix: str) -> None:
    """Remove every region whose name begins with ``prefix``."""
    for path in SHM_FOLDER.glob(f"{prefix}*"):
        remove_region(path.name, prefix=prefix)


def remove_region(name: str, *, prefix: str, folder: Path = SHM_FOLDER) -> None:
    """Remove one region of a folder, if it exists and its name begins with ``prefix``."""
    if name.startswith(prefix):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def hide_regions(prefix: str) -> None:
    """Take the regions whose names begin with ``prefix`` from other users, for whom Triton makes them readable."""
    for path in SHM_FOLDER.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            region = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                os.fchmod(region, 0o600)
            finally:
                os.close(region)


def remove_leftovers() -> None:
    """Remove the regions and folders of servers whose process is gone."""
    namespace = _pid_namespace()
    for path in (*SHM_FOLDER.glob("onestream-*"), *Path(tempfile.gettempdir()).glob("onestream-*")):
        owner = _PREFIX.match(path.name)
        if owner is None or owner["namespace"] != namespace:
            continue
        process = read_stat(int(owner["pid"]))
        if process is not None and process.start_ticks == int(owner["start"]):
            continue
        if path.parent == SHM_FOLDER:
            remove_region(path.name, prefix=owner[0])
        else:
            shutil.rmtree(path, ignore_errors=True)


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
