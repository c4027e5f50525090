"""Files that hold secrets: tokens and keys of TLS, which other accounts of this machine must not read."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

from onestream.serving.errors import BadProxy

# A group may read: nginx's workers or a container's user may need one. Nobody but the owner may change what is trusted.
_ALLOWED = 0o740


def check_private(file: Path, *, holds: str) -> None:
    """Refuse a file that others may read or write.

    Args:
        file: what is looked at; a link's target counts.
        holds: its secret in words, such as *tokens*.

    Raises:
        BadProxy: they may, or it is not there.
    """
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        raise BadProxy(f"cannot read {file}: {error.strerror}") from None
    if mode & ~_ALLOWED & 0o777:
        raise BadProxy(
            f"{file} holds {holds} and has mode {mode:04o}, so that others may read or change it; expected 0600 or "
            f"0640. Run: chmod 600 {shlex.quote(str(file))}, and replace what others may have read"
        )
