"""Labels in CSV files and JSON lines, by the names of columns."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.storage import remote
from onestream.preprocess.training.sources.annotations import inside
from onestream.preprocess.training.sources.labels import LabelKind, read_as
from onestream.preprocess.training.sources.samples import Files

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".ndjson")


def read_labels(
    file: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    path: str = "path",
    label: str | Sequence[str] = "label",
    labels: LabelKind = "class",
    classes: Sequence[str] | None = None,
    separator: str = "|",
) -> Files:
    """Read a table of pictures and labels: ``.csv`` and ``.tsv`` with a line of column names, or ``.jsonl``, in UTF-8.

    ``path`` is the column of the picture's path within the folder ``images``, a path or an address, without that within
    the table's own. ``label`` is the column of the label, or several: their values by name, which are shares or 0 and 1
    of the classes of these names, or a vector. ``labels`` is the kind of label, with ``classes`` the names of all
    classes: see ``Labels``. In a CSV file a label of several values is text with a ``separator`` between them, such as
    ``cat|dog``.

    Raises ``BadDataset`` naming file and line for a label that is none of this kind, a column that is missing, a path
    out of the folder, and what is no such table.
    """
    table = Path(file)
    folder = os.fspath(table.parent if images is None else images)
    columns = (label,) if isinstance(label, str) else tuple(label)
    splits = table.suffix.lower() in _DELIMITERS and labels in ("multi_label", "soft", "vector")
    paths: list[str] = []
    found: list[Any] = []
    where: list[str] = []
    try:
        for number, row in _rows(table):
            name = f"{table} line {number}"
            if missing := [one for one in (path, *columns) if row.get(one) is None]:
                raise BadDataset(f"{name} has no {', '.join(missing)}; it has {', '.join(map(str, row))}")
            try:
                relative = inside(Path(), str(row[path])).as_posix()
                paths.append(
                    remote.inside(folder, relative) if remote.is_address(folder) else str(Path(folder, relative))
                )
            except BadSample as error:
                raise BadDataset(f"{name}: {error}") from None
            if isinstance(label, str):
                value = row[label]
                found.append([one for one in value.split(separator) if one] if splits else value)
            else:
                found.append({one: row[one] for one in columns})
            where.append(name)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadDataset(f"{table} cannot be read: {error}") from None
    if not paths:
        raise BadDataset(f"{table} names no image")
    kind, values = read_as(labels, found, classes, where.__getitem__)
    return Files(paths, values, kind.classes, kind=kind)


def _rows(table: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table with their lines."""
    suffix = table.suffix.lower()
    if suffix not in (*_DELIMITERS, *_JSON_LINES):
        raise BadDataset(f"{table} ends in {suffix!r}; expected {', '.join((*_DELIMITERS, *_JSON_LINES))}")
    with table.open(encoding="utf-8-sig", newline="") as lines:
        if suffix in _DELIMITERS:
            rows = csv.DictReader(lines, delimiter=_DELIMITERS[suffix], strict=True)
            header = rows.fieldnames or []
            if twice := [one for one, count in Counter(header).items() if count > 1]:
                raise BadDataset(f"{table} has the column {twice[0]} more than once")
            for row in rows:
                if None in row:
                    raise BadDataset(f"{table} line {rows.line_num} has more values than there are columns")
                yield rows.line_num, row
            return
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadDataset(f"{table} line {number}: {error}") from None
            if not isinstance(row, dict):
                raise BadDataset(f"{table} line {number} is no JSON object")
            yield number, row
