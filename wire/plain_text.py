"""Text of others within text that we write: a comment of a file, a cell of a table, the reason of an error."""

from __future__ import annotations

_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")


def one_line(text: str) -> str:
    """The text with escapes of Python's strings for what is not printable, such as every line break of Unicode."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def first_line(error: Exception) -> str:
    """The first line of an error's text, at most 200 characters of it; its type where it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def csv_cell(value: object) -> object:
    """A cell that spreadsheets show and do not compute: text that would begin a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value
