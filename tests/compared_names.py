"""Finds where the product compares a value with the name of something that a table describes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("wire", "preprocess", "postprocess", "pipelines", "serving", "client", "measure", "cli")


def product_files(*, but: Collection[str]) -> Iterator[Path]:
    """The Python files of all rooms but these files and folders."""
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if not {str(path.relative_to(ROOT)), str(path.parent.relative_to(ROOT))} & set(but):
                yield path


def compared(path: Path, names: Collection[str]) -> list[str]:
    """Where a file compares a value with one of the names, matches it, or passes it as an argument of that use."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        values: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue) or (isinstance(node, ast.keyword) and node.arg in ("backend", "engine")):
            values = [node.value]
        constants = {one.value for value in values for one in ast.walk(value) if isinstance(one, ast.Constant)}
        found += [f"{path.relative_to(ROOT)}:{values[0].lineno}: {name}" for name in set(names) & constants]
    return found
