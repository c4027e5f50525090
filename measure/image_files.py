"""Image files as commands are given them: names, patterns and folders."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".webp", ".tif", ".tiff", ".bmp"})
"""What is taken from a folder, in lower or upper case. A file that is named is always sent."""

_NAMES_AT_ONCE = 200_000
_NAMES_SHOWN = 3


class ImageNames:
    """Tells by their names which files of folders and tar files are images, and counts those that it passes over.

    ``every_file`` takes them all; ``way_out`` says how the user gets them tried.
    """

    def __init__(self, *, every_file: bool = False, way_out: str = "a file that is named itself is tried") -> None:
        self._every_file, self._way_out = every_file, way_out
        self._count = 0
        self._first: list[str] = []

    def takes(self, name: str, *, folder: str = "") -> bool:
        """Whether a file is taken; ``folder`` is the folder or tar file that holds it. To be asked once for each."""
        # Not by pathlib, which in Python 3.12 keeps every part of a path for ever.
        if self._every_file or os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
            return True
        self._count += 1
        if len(self._first) < _NAMES_SHOWN:
            self._first.append(os.path.join(folder, name))
        return False

    @property
    def passed_over(self) -> str:
        """How many files were passed over, the names of the first few, and what takes them; empty where none was."""
        if not self._count:
            return ""
        # repr() shows what could command a terminal, or cannot be written, as an escape.
        names = ", ".join(map(repr, self._first))
        more = f" and {self._count - len(self._first)} more" if self._count > len(self._first) else ""
        files = "1 file that is" if self._count == 1 else f"{self._count} files that are"
        return f"passed over {files} not named like an image: {names}{more}; {self._way_out}"

    def none_in(self, arguments: Iterable[str]) -> str:
        """What to say where the arguments name no image."""
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        expected = "" if self._every_file else f"; expected names that end in {suffixes}"
        passed_over = f"; {self.passed_over}" if self._count else ""
        return f"no images in {', '.join(arguments)}{expected}{passed_over}"


def expand(arguments: Iterable[str], names: ImageNames | None = None) -> list[Path]:
    """The files that the arguments name, in their order; those of a folder or a pattern sorted.

    A folder stands for the images in it and below, as ``names`` tells. A pattern that matches nothing, like a file that
    does not exist, stays as it is, so that it is reported as an image that cannot be read.
    """
    names = names or ImageNames()
    paths: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            paths += [Path(found) for found, _ in images_below(argument, names)]
        elif not path.exists() and (matches := matching(argument)):
            paths += [Path(match) for match in matches if not Path(match).is_dir()]
        else:
            paths.append(path)
    return paths


def matching(pattern: str) -> list[str]:
    """The paths that match a pattern, sorted; none where its ``**`` leads through more folders than Python can nest."""
    try:
        return sorted(glob.glob(pattern, recursive=True))
    except RecursionError:
        return []


def images_below(folder: str, names: ImageNames) -> Iterator[tuple[str, OSError | None]]:
    """The paths of the images in a folder and below, sorted by name, each with why it is none, or None.

    What is called like an image, and is a link to nothing or no regular file, is such a path, and so is a folder that
    cannot be read. Links to folders are not followed, since they may lead in circles. Memory stays bounded, however
    many there are and however deep they lie.
    """
    below = [(folder, _sorted_entries(folder))]
    while below:
        at, entries = below[-1]
        try:
            entry = next(entries, None)
        except OSError as error:
            below.pop()
            yield at, error
            continue
        if entry is None:
            below.pop()
            continue
        path = os.path.join(at, entry.name)
        if entry.is_folder:
            below.append((path, _sorted_entries(path)))
        elif names.takes(entry.name, folder=at):
            yield path, entry.error


class _Entry(NamedTuple):
    name: str
    is_folder: bool
    error: OSError | None


def _sorted_entries(folder: str) -> Iterator[_Entry]:
    """What is in a folder, sorted by name, without links to folders.

    Each pass over the folder takes the next block of names.
    """
    last = ""
    while True:
        block: list[_Entry] = []
        with os.scandir(folder) as entries:
            for found in entries:
                if found.name > last and (entry := _entry(found)) is not None:
                    block.append(entry)
                if len(block) == 2 * _NAMES_AT_ONCE:
                    block.sort()
                    del block[_NAMES_AT_ONCE:]
        block.sort()
        yield from block[:_NAMES_AT_ONCE]
        if len(block) < _NAMES_AT_ONCE:
            return
        last = block[_NAMES_AT_ONCE - 1].name


def _entry(found: os.DirEntry[str]) -> _Entry | None:
    try:
        if found.is_dir(follow_symlinks=False):
            return _Entry(found.name, True, None)
        if found.is_file():
            return _Entry(found.name, False, None)
        if found.is_dir():
            return None
        # A link to nothing fails here, with the system's own words.
        os.stat(found.path)
        return _Entry(found.name, False, OSError(errno.EINVAL, "not a regular file"))
    except OSError as error:
        return _Entry(found.name, False, error)
