"""Files behind an address such as ``s3://bucket/photos``: listed, read and written by pyarrow, or by fsspec."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, BinaryIO

from onestream.wire.install import install_command

_ADDRESS = re.compile(r"(?P<root>(?P<scheme>[a-z][a-z0-9+.-]+)://[^/?]*)(?P<path>/[^?]*)?(?P<options>\?.*)?", re.DOTALL)
_OF_THE_WEB = ("http", "https")
_WHOLE_OR_NOT_AT_ALL = ("s3", "gcs", "abfs")
"""Object stores, in which a file appears when all of it was written."""
READ_AT_ONCE = 4 << 20
"""Bytes that are asked for where a file is read in small pieces: a store answers each question after a while."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder behind an address; ``error`` is why its address does not lead to it."""

    address: str
    name: str
    is_folder: bool
    error: OSError | None = None

    @classmethod
    def of(cls, folder: str, name: str, *, is_folder: bool) -> Entry:
        """What is called ``name`` in the folder at an address."""
        # As an address it would be another place, with options.
        error = OSError(f"{name}: an address cannot hold a name with ?") if "?" in name else None
        return cls(inside(folder, name), name, is_folder, error)


def is_address(name: str) -> bool:
    """Whether a name is an address of another file system than this machine's. Web pages are none."""
    found = _ADDRESS.fullmatch(name)
    return found is not None and found["scheme"] not in (*_OF_THE_WEB, "file")


def local_path(name: str) -> str:
    """``file:///photos`` as ``/photos``; any other name as it is."""
    return name.removeprefix("file://") if name.startswith("file:///") else name


def without_options(address: str) -> str:
    """The address without what it says of how it is opened: ``?region=us-east-1`` and the like."""
    return address.partition("?")[0]


def inside(folder: str, name: str) -> str:
    """The address of what is called ``name`` in a folder, opened as the folder is."""
    before, mark, options = folder.partition("?")
    return f"{before.rstrip('/')}/{name}{mark}{options}"


def entries(address: str) -> list[Entry]:
    """What is in a folder, sorted by name. Raises OSError.

    The names of one folder are held at once.
    """
    from pyarrow.fs import FileSelector, FileType

    files, path = _opened(address)
    found = [
        Entry.of(address, info.base_name, is_folder=info.type == FileType.Directory)
        for info in files.get_file_info(FileSelector(path))
        if info.base_name
    ]
    return sorted(found, key=lambda entry: entry.name)


def is_folder(address: str) -> bool:
    """Whether there is a folder. Raises OSError."""
    from pyarrow.fs import FileType

    files, path = _opened(address)
    return bool(files.get_file_info(path).type == FileType.Directory)


def version_of(address: str) -> tuple[int, int | str | None]:
    """The size of a file in bytes, and when it was changed: in ns, or as fsspec says it, or None. Raises OSError."""
    from pyarrow.fs import FileType, PyFileSystem

    files, path = _opened(address)
    info = files.get_file_info(path)
    if info.type != FileType.File:
        raise OSError("there is no such file")
    changed = info.mtime_ns
    if changed is None and isinstance(files, PyFileSystem):
        # pyarrow looks for it under a name that few packages of fsspec have.
        with suppress(NotImplementedError):
            changed = str(files.handler.fs.modified(path))
    return int(info.size), changed


def matches(pattern: str) -> list[Entry]:
    """The files that an address with ``*`` in its last part stands for, sorted. Raises OSError."""
    before, mark, options = pattern.partition("?")
    folder, _, last = before.rpartition("/")
    found = entries(f"{folder}{mark}{options}")
    return [one for one in found if not one.is_folder and fnmatchcase(one.name, only_stars(last))]


def only_stars(pattern: str) -> str:
    """A pattern of ``glob`` in which nothing but ``*`` stands for other names."""
    return re.sub(r"[?\[]", r"[\g<0>]", pattern)


def open_stream(address: str, *, in_small_pieces: bool = False) -> BinaryIO:
    """A file, to be read from its beginning to its end. Raises OSError."""
    files, path = _opened(address)
    # Not unpacked by its ending: what that means is the reader's business, as it is of local files.
    return files.open_input_stream(  # type: ignore[no-any-return]
        path, compression=None, buffer_size=READ_AT_ONCE if in_small_pieces else None
    )


def open_file(address: str) -> BinaryIO:
    """A file of which any part may be read. Raises OSError."""
    files, path = _opened(address)
    return files.open_input_file(path)  # type: ignore[no-any-return]


def write_whole_file(address: str, content: bytes, *, temporary: str) -> None:
    """Write a file that is complete or not there. ``temporary`` is an address beside it. Raises OSError."""
    files, path = _opened(address)
    direct = files.type_name in _WHOLE_OR_NOT_AT_ALL
    first = path if direct else _opened(temporary)[1]
    with files.open_output_stream(first) as file:
        try:
            file.write(content)
        except BaseException:
            # What is closed early is a file, too. What closing it says would hide why.
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                files.delete_file(first)
            raise
    if not direct:
        files.move(first, path)


def make_folder(address: str) -> None:
    """Make a folder, if it is not there. Raises OSError."""
    files, path = _opened(address)
    files.create_dir(path)


def remove(address: str) -> None:
    """Delete a file. Raises OSError."""
    files, path = _opened(address)
    files.delete_file(path)


def _opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it. Raises OSError where nothing opens such an address."""
    found = _ADDRESS.fullmatch(address)
    assert found is not None
    if found["options"] == "?":
        raise OSError(f"{address}: a name with ? cannot be an address; expected options after it, such as ?region=…")
    files, root = _filesystem(found["root"], found["options"] or "", os.getpid())
    return files, root.rstrip("/") + (found["path"] or "").rstrip("/")


@lru_cache(maxsize=64)
def _filesystem(root: str, options: str, process_id: int) -> tuple[Any, str]:  # noqa: ARG001
    """pyarrow's own file system, or one of fsspec's packages, and the path of its root.

    Each process has its own: the connections of one that was there before a fork would be shared.
    """
    try:
        from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
    except ImportError as error:
        raise ImportError(f"reading {root} needs pyarrow: {install_command('bulk')} ({error})") from None
    try:
        return FileSystem.from_uri(f"{root}/{options}")  # type: ignore[no-any-return]
    except ValueError as error:
        if options:
            # They are pyarrow's, and fsspec would pass over them.
            raise OSError(f"{root}/{options} cannot be opened: {error}") from None
    try:
        from fsspec.core import url_to_fs

        of_fsspec, path = url_to_fs(f"{root}/")
    except (ValueError, ImportError) as error:
        raise OSError(f"{root} cannot be opened: {error}") from None
    return PyFileSystem(FSSpecHandler(of_fsspec)), path
