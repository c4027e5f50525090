"""Files that are kept to save work: whole or not there, and no longer believed once they are damaged."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_HEAD = struct.Struct("<4sI")
_MAGIC = b"kept"
_TEMPORARY = ".tmp-"


def read_kept(path: Path) -> bytearray | None:
    """What ``write_kept`` wrote; None where there is no such file, or it is damaged."""
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(_HEAD.size)
            content = bytearray(max(0, os.fstat(file.fileno()).st_size - _HEAD.size))
            file.readinto(content)
    except OSError:
        return None
    return content if head == _HEAD.pack(_MAGIC, zlib.crc32(content)) else None


def kept_size(content: bytes) -> int:
    """The size of the file of this content."""
    return _HEAD.size + len(content)


def write_kept(path: Path, content: bytes) -> None:
    """Write a file that any process may read or write at the same time. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{_TEMPORARY}{uuid4().hex}"
    try:
        with open(temporary, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, zlib.crc32(content)))
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
