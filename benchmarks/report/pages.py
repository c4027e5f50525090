"""Tables in Markdown, in a marked place of a page that a command writes and checks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; each of its lines ends with a newline."""
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (head, ["---"] * len(head), *rows))


def replaced(text: str, block: str) -> str:
    """``text`` with ``block`` between the marker lines.

    Raises ``ValueError`` where the markers are not there once each, in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"expected the lines {BEGIN} and {END} once each, in this order")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{block}{END}{after}"


def rewrite(block: Callable[[Path], str], arguments: Sequence[str] | None, *, command: str, results: Path) -> int:
    """The command line that writes or checks what ``block`` makes of a folder of results; returns the exit status.

    ``results`` is the folder where none is named.
    """
    parser = argparse.ArgumentParser(prog=command, description="Tables of results in a page.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of FILE")
    action.add_argument("--check", type=Path, metavar="FILE", help="fail where FILE differs from the results")
    parser.add_argument("--results", type=Path, metavar="FOLDER", default=results, help="folder of results")
    options = parser.parse_args(arguments)
    path: Path = options.write or options.check
    text = path.read_text(encoding="utf-8")
    try:
        wanted = replaced(text, block(options.results))
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    if options.write:
        path.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        print(f"{path} differs from the result files; run: {command} --write {path}", file=sys.stderr)
        return 1
    return 0
