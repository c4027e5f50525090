"""The file of tokens: one line each, which nginx includes unchanged.

::

    "Bearer 3f9c…" alice;
    # nightly jobs
    "Bearer 77ab…" batch;

A name may have several tokens, so that a new one can be given out before the old one is removed. Names appear in the
proxy's log, tokens never. Upper and lower case of a token's letters are not told apart.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import stat
from pathlib import Path

from onestream.serving.errors import BadProxy

_LINE = re.compile(r'"Bearer (?P<token>[A-Za-z0-9._~+/=-]{32,200})" (?P<name>[\w.-]{1,64});', re.ASCII)
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
# A group may read: nginx's workers or a container's user may need one. Nobody but the owner may change what is trusted.
_ALLOWED = 0o740


def add_token(file: Path, name: str) -> str:
    """Make a token of 256 random bits, add it to the file, which is made if need be for its owner only, and return it.

    Args:
        file: the file of tokens.
        name: who gets it: 1 to 64 letters, digits, ``_``, ``.`` and ``-``.

    Raises:
        BadProxy: the name is none, or the file is malformed, can be read by others, or cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise BadProxy(f"{name!r} is no name for a token; expected 1 to 64 letters, digits, '_', '.' and '-'")
    if file.exists():
        check_tokens(file, may_be_empty=True)
    token = secrets.token_hex(32)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="ascii") as opened:
            opened.write(f'"Bearer {token}" {name};\n')
    except OSError as error:
        raise BadProxy(f"cannot write {file}: {error.strerror}") from None
    return token


def check_tokens(file: Path, *, may_be_empty: bool = False) -> list[str]:
    """The names in a file of tokens, in its order. Messages name the line, and never what it holds.

    Raises:
        BadProxy: it cannot be read, or can be by others, a line is malformed, a token stands twice, or there is none.
    """
    check_private(file, holds="tokens")
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadProxy(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not plain ASCII'}") from None
    names: list[str] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise BadProxy(f'{file} line {number}: expected "Bearer TOKEN" NAME; with a token of 32 to 200 characters')
        first = seen.setdefault(match["token"].lower(), number)
        if first != number:
            raise BadProxy(f"{file} line {number}: the token of line {first} again; one token is one line")
        names.append(match["name"])
    if not names and not may_be_empty:
        raise BadProxy(
            f"{file} holds no token; add one with `onestream proxy token NAME --file {shlex.quote(str(file))}`"
        )
    return names


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
