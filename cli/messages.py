"""What commands print of answers, of names, and of errors beside the names that they are about."""

from __future__ import annotations

from unicodedata import category

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from onestream.client import OnestreamError, Result, UnreadableInput
from onestream.client.kinds.base import Line

_WIDE = 1000
"""Columns; more than any table here has."""


def lines(result: Result, top: int) -> list[Line]:
    """The lines of an answer, at least one: its ``top`` best classes, all regions, masks or tensors."""
    return result.best(top).summary() or [Line(result.nothing)]


def printable(text: str) -> str:
    """The text with a question mark for what could command a terminal or turn its lines around."""
    return "".join(letter if letter.isprintable() or category(letter) == "Zs" else "?" for letter in text)


def without_name(error: OnestreamError | None) -> str:
    """The error's text without the name of the file or stream, which the line or table says already."""
    return error.reason if isinstance(error, UnreadableInput) else str(error)


def table_console() -> Console:
    """Where a table goes: the terminal in its width, a file or a pipe as wide as the table is."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def short_path(path: str, console: Console) -> Text:
    """A path for a table: where it would take more than half of the width, without its first folders."""
    most = console.width // 2
    if cell_len(path) > most:
        parts = path.split("/")
        while len(parts) > 1 and cell_len("…/" + "/".join(parts)) > most:
            del parts[0]
        path = "…/" + "/".join(parts)
    return Text(path)
