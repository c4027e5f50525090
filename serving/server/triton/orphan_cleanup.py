"""Removes what a server left behind: regions in /dev/shm, temporary folders, and processes.

Their names and command lines say whose they are, so that a server removes its own, and those of dead owners, and no
others: ``onestream-NAMESPACE-PID-START-NUMBER-``. The namespace of process ids tells containers that share /dev/shm
apart; the start time tells a process from a later one with the same id. Only the folder that Triton's Python backend
makes has no such name (``remove_environments``).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from onestream.serving.server.triton.guard import guard_prefix
from onestream.serving.server.triton.model_processes import KnownProcess, read_stat, region_of, running_processes

SHM_FOLDER = Path("/dev/shm")

ENVIRONMENTS = Path("/tmp")
"""Where Triton's Python backend makes a folder for Python environments, whatever TMPDIR says."""

_BACKEND = b"/libtriton_python.so"
_CLOCK_S = 2.0
"""By which the clocks of processes and of files may differ."""
_END_TIMEOUT_S = 5.0
_POLL_S = 0.05
_numbers = itertools.count()
_PREFIX = re.compile(r"onestream-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<start>\d+)-\d+-")


def new_prefix() -> str:
    """Make a prefix that belongs to this process, and to no other server in it."""
    own = read_stat(os.getpid())
    assert own is not None
    return f"onestream-{_pid_namespace()}-{own.pid}-{own.start_ticks}-{next(_numbers)}-"


def region_folder(pid: int) -> Path:
    """The /dev/shm of a process of this user, which may have one of its own (``private_memory``)."""
    return Path(f"/proc/{pid}/root{SHM_FOLDER}")


def has_private_memory(pid: int) -> bool:
    """Whether a process has a /dev/shm of its own, which no other user can look into."""
    try:
        return region_folder(pid).stat().st_dev != SHM_FOLDER.stat().st_dev
    except OSError:
        return False


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


def end_processes(prefix: str) -> None:
    """Kill every model process and guard whose command line carries ``prefix``, and wait until they have ended."""
    _end([process for process, owner in _owned_processes() if owner[0] == prefix])


def remove_leftovers() -> None:
    """End the processes, and remove the regions and folders, of servers whose process is gone."""
    remove_environments()
    _end([process for process, owner in _owned_processes() if _is_dead(owner)])
    for path in (*SHM_FOLDER.glob("onestream-*"), *Path(tempfile.gettempdir()).glob("onestream-*")):
        owner = _PREFIX.match(path.name)
        if owner is None or not _is_dead(owner):
            continue
        if path.parent == SHM_FOLDER:
            remove_region(path.name, prefix=owner[0])
        else:
            shutil.rmtree(path, ignore_errors=True)


def remove_environments() -> None:
    """Remove the folders for Python environments that servers of this user left behind.

    Triton's Python backend makes one at its start, and removes it unless it is killed. One is removed if it is empty,
    as all but those of models with an environment of their own are, and whoever could have made it has ended: no
    process with the backend is as old as the folder.
    """
    found: dict[Path, float] = {}
    for path in ENVIRONMENTS.glob("python_env_*"):
        with contextlib.suppress(OSError):
            made = path.lstat()
            if made.st_uid == os.geteuid():
                found[path] = made.st_mtime
    oldest = _oldest_backend() if found else math.inf
    for path, made_at in found.items():
        if made_at + _CLOCK_S < oldest:
            with contextlib.suppress(OSError):  # not empty, or no folder
                path.rmdir()


def _oldest_backend() -> float:
    """When the oldest running process of this user with Triton's Python backend started, in seconds since 1970."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    oldest = math.inf
    for folder in Path("/proc").glob("[0-9]*"):
        stat = read_stat(int(folder.name))
        if stat is None:
            continue
        try:
            is_ours = folder.stat().st_uid == os.geteuid()
            has_backend = is_ours and _BACKEND in (folder / "maps").read_bytes()
        except PermissionError:
            has_backend = stat.name == "tritonserver"
        except OSError:
            has_backend = False
        if has_backend:
            oldest = min(oldest, booted + stat.start_ticks / os.sysconf("SC_CLK_TCK"))
    return oldest


def _is_dead(owner: re.Match[str]) -> bool:
    if owner["namespace"] != _pid_namespace():
        return False
    process = read_stat(int(owner["pid"]))
    return process is None or process.is_zombie or process.start_ticks != int(owner["start"])


def _owned_processes() -> Iterator[tuple[KnownProcess, re.Match[str]]]:
    """Model processes and guards, with the prefix of their servers. tritonserver ends with its guard."""
    for process, arguments in running_processes():
        owner = _PREFIX.match(region_of(arguments) or guard_prefix(arguments) or "")
        if owner is not None:
            yield process, owner


def _end(processes: list[KnownProcess]) -> None:
    for process in processes:
        process.kill()
    deadline = time.monotonic() + _END_TIMEOUT_S
    while any(process.ending() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
