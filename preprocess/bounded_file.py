"""Files that others name: read whole, and never more than a bound."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


class FileTooLarge(OSError):
    """A file has more bytes than are read."""


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises ``OSError``, whose ``strerror`` says why, also where it is no regular file.

    ``FileTooLarge`` where it has more than ``max_bytes``, whatever size it claims.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    size = status.st_size
    if size <= max_bytes:
        with path.open("rb") as file:
            # Files of /proc claim to be empty, and others grow.
            content = file.read(max_bytes + 1)
        size = len(content)
    if size > max_bytes:
        raise FileTooLarge(errno.EFBIG, f"it has {size} bytes; at most {max_bytes} are read")
    return content
