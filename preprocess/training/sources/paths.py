"""Paths of many files in little memory: 200,000 are one byte string and one array."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import overload

import numpy as np

from onestream.preprocess.errors import BadDataset
from onestream.preprocess.storage import remote


class Paths(Sequence[Path]):
    """An unchangeable sequence of paths, kept as bytes; each is a ``Path`` only where it is asked for."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        names = [os.fspath(path) for path in paths]
        try:
            self._bytes = os.fsencode("".join(f"{name}\0" for name in names))
        except UnicodeEncodeError as error:
            raise BadDataset(f"a path holds a character that no file name can: {error.object[error.start]!r}") from None
        self._ends = np.flatnonzero(np.frombuffer(self._bytes, np.uint8) == 0)
        if len(self._ends) != len(names):
            raise BadDataset(f"a path holds the character 0: {next(name for name in names if chr(0) in name)!r}")

    def __len__(self) -> int:
        """Number of paths."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Path: ...

    @overload
    def __getitem__(self, index: slice) -> Paths: ...

    def __getitem__(self, index: int | slice) -> Path | Paths:
        """One path, or some."""
        if isinstance(index, slice):
            return Paths(self.name(place) for place in range(*index.indices(len(self))))
        return Path(self.name(index))

    def __iter__(self) -> Iterator[Path]:
        """Each path."""
        return (Path(self.name(index)) for index in range(len(self)))

    def name(self, index: int) -> str:
        """A path as text."""
        place = range(len(self))[index]
        return os.fsdecode(self._bytes[self._ends[place - 1] + 1 if place else 0 : self._ends[place]])


def files_below(folder: str | os.PathLike[str], suffixes: tuple[str, ...]) -> Iterator[str]:
    """The files in a folder and those below it that end so, in any case, in the order of their paths' parts.

    The folder is a path or an address. Links to files count, links to folders are not followed. Raises ``BadDataset``
    where a folder cannot be read.
    """
    if remote.is_address(os.fspath(folder)):
        for one in entries_behind(os.fspath(folder)):
            if one.is_folder:
                yield from files_below(one.address, suffixes)
            elif one.name.lower().endswith(suffixes):
                yield one.address
        return
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=attrgetter("name"))
    except OSError as error:
        raise BadDataset(f"{os.fspath(folder)} cannot be read: {error.strerror or error}") from None
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(entry.path, suffixes)
        elif entry.name.lower().endswith(suffixes) and entry.is_file():
            yield entry.path


def entries_behind(address: str) -> list[remote.Entry]:
    """What is in a folder behind an address. Raises ``BadDataset`` where it cannot be listed."""
    try:
        found = remote.entries(address)
    except Exception as error:  # what fsspec's packages raise is not one family
        raise BadDataset(f"{address} cannot be read: {error}") from None
    if bad := next((one for one in found if one.error is not None), None):
        raise BadDataset(f"{address} cannot be read: {bad.error}")
    return found
