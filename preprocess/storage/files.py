"""Files by their names, on this machine or behind an address: found by patterns, and read whole or in part."""

from __future__ import annotations

import glob
import os
import stat
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from onestream.preprocess.storage import remote

Version = tuple[int, int | str | None]
"""A file's size in bytes, and when it was changed: in ns, or a text of the store's, or None where that is unknown."""
_MOST_BRACES = 64


def expand_braces(text: str) -> Iterable[str]:
    """Every name that ``text`` stands for, as bash would write them.

    A text with unpaired braces stays as it is, and so does one with more than 64 pairs.
    """
    from braceexpand import braceexpand  # loaders of other sources go without it

    try:
        names: Iterable[str] = [text] if text.count("{") > _MOST_BRACES else braceexpand(text, escape=False)
    except ValueError:
        return [text]
    return names


def files_named(names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Paths and addresses that names stand for, with ``*`` or ``{0..9}``: in the order given, of a ``*`` sorted.

    A pattern that matches nothing stays as it is; all other characters, such as ``[``, stand for themselves. Raises
    OSError where a store cannot be listed.
    """
    given = [names] if isinstance(names, str | os.PathLike) else names
    found: list[str] = []
    for pattern in (remote.local_path(os.fspath(one)) for one in given):
        if not remote.is_address(pattern) and os.path.lexists(pattern):
            found.append(pattern)
            continue
        for name in expand_braces(pattern):
            if remote.is_address(name):
                matches = [one.address for one in remote.matches(name)] if "*" in remote.without_options(name) else []
            else:
                matches = sorted(glob.glob(remote.only_stars(name)))
            found += matches or [name]
    return found


def ends_in(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a path or an address ends so, in any case, without the options of an address."""
    return (remote.without_options(name) if remote.is_address(name) else name).lower().endswith(suffixes)


def read_file(name: str) -> bytes:
    """The bytes of a file. Raises OSError."""
    if not remote.is_address(name):
        with open(name, "rb") as local:
            return local.read()
    try:
        with remote.open_stream(name) as file:
            return file.read()
    except Exception as error:  # what fsspec's packages raise is not one family
        raise as_os_error(error) from None


def read_part(name: str, offset: int, size: int, *, version: Version) -> bytes:
    """``size`` bytes of a file from ``offset`` on, or those up to its end. Raises OSError, also where it has changed.

    A file behind an address is looked at when a thread opens it.
    """
    if not remote.is_address(name):
        with open(name, "rb", buffering=0) as local:
            _check(_version(os.fstat(local.fileno())), version)
            return os.pread(local.fileno(), size, offset)
    try:
        data: bytes = _opened(name, version, os.getpid(), threading.get_ident()).read_at(size, offset)
    except Exception as error:  # as above
        raise as_os_error(error) from None
    return data


def version_of(name: str) -> Version:
    """The version of a file. Raises OSError, also for a pipe or a folder."""
    if not remote.is_address(name):
        return _version(os.stat(name))
    try:
        return remote.version_of(name)
    except Exception as error:  # as above
        raise as_os_error(error) from None


def check_version(name: str, version: Version) -> None:
    """Raise OSError where a file is not of this version."""
    _check(version_of(name), version)


def as_os_error(error: Exception) -> OSError:
    """An error of a store as one of the system."""
    return error if isinstance(error, OSError) else OSError(str(error) or type(error).__name__)


def _version(found: os.stat_result) -> Version:
    if not stat.S_ISREG(found.st_mode):
        # Opening a pipe would wait for who writes it.
        raise OSError("it is no regular file")
    return found.st_size, found.st_mtime_ns


def _check(found: Version, expected: Version) -> None:
    if found != expected:
        raise OSError("it has changed since the dataset was opened")


@lru_cache(maxsize=256)
def _opened(address: str, version: Version, process_id: int, thread_id: int) -> Any:  # noqa: ARG001
    """A file behind an address, which stays open, since opening it asks the store: each thread of a process has one."""
    check_version(address, version)
    return remote.open_file(address)
