"""Writes rows as CSV, JSON lines, Parquet or COCO's results; a file is complete or not there."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, get_args, get_origin

from onestream.cli.bulk.journal import replace_durably
from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.tables import Table
from onestream.client import Result
from onestream.wire.install import install_command
from onestream.wire.plain_text import csv_cell

_ROW_GROUP, _ROW_GROUP_OF_LISTS = 50_000, 2_000
"""Rows of a Parquet row group, and how many are held in memory at once."""

_MOST_DIGITS = 100
"""Of a number in a name, with the zeros before it; Python reads no number of thousands."""

Rows = Iterable[Row]
"""The rows of a run. They can be gone through more than once."""

Writer = Callable[[Path, Rows, int], None]


class Unwritable(Exception):
    """A result that has no place in the output."""


def writer_for(path: Path) -> Writer:
    """The writer for a file of this name. Raises ValueError for another ending, ImportError for a missing library."""
    kinds: dict[str, Writer] = {
        ".csv": _csv,
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".parquet": _parquet,
        ".json": _coco,
    }
    if path.suffix.lower() not in kinds:
        raise ValueError(f"--to {path} ends in {path.suffix!r}, expected {', '.join(kinds)}")
    writer = kinds[path.suffix.lower()]
    if writer is _parquet:
        _pyarrow()
    return writer


def check_takes(path: Path, result: Result) -> None:
    """Raise Unwritable where a file of this name cannot hold such a result."""
    if writer_for(path) is _coco and result.to_coco(0) is None:
        raise Unwritable(
            f"{path} is to hold COCO's results, which are objects; the pipeline answers {result.noun}: use .jsonl"
        )


def write_whole(path: Path, rows: Rows, top: int) -> None:
    """Write all rows to ``path``, which is replaced only when they are complete."""
    temporary = path.with_name(path.name + ".tmp")
    writer_for(path)(temporary, rows, top)
    replace_durably(temporary, path)


class ErrorsFile:
    """The rows that failed, as CSV, in a file that is there only if one did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        path.unlink(missing_ok=True)

    def add(self, row: Row) -> None:
        """Write a row that failed, at once."""
        if self._file is None:
            self._file = self.path.open("w", newline="", encoding="utf-8")
            csv.writer(self._file).writerow(["path", "key", "error", "reason"])
        csv.writer(self._file).writerow(map(csv_cell, (row.path, row.key, row.error, row.reason)))
        self._file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def _example(rows: Rows) -> Result | None:
    """A result that shows what all have, so one with regions where any has some; None where every image failed."""
    found: Result | None = None
    for row in rows:
        if row.result is not None:
            found = row.result
            if found.shows_schema:
                break
    return found


def _csv(path: Path, rows: Rows, top: int) -> None:
    table = Table.of(_example(rows), top, is_flat=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([csv_cell(name) for name in table.columns])
        for row in rows:
            writer.writerows(map(csv_cell, record) for record in table.records(row))


def write_json_lines(file: BinaryIO, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines, in one pass."""
    file.writelines(row.to_json().encode() + b"\n" for row in rows)


def write_parquet(file: BinaryIO, rows: Iterable[Row], *, like: Result | None, top: int) -> None:
    """Write rows as Parquet, in one pass, with the columns of an answer ``like`` this; None stands for classes."""
    pa = _pyarrow()
    import pyarrow.parquet

    table = Table.of(like, top, is_flat=False)
    schema = pa.schema([(name, _arrow_type(kind)) for name, kind in table.columns.items()])
    at_once = _ROW_GROUP if like is None or like.is_short else _ROW_GROUP_OF_LISTS
    left = iter(rows)
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while group := list(itertools.islice(left, at_once)):
            writer.write_table(pa.table(arrow_columns(table, group), schema=schema))


def arrow_columns(table: Table, rows: Sequence[Row]) -> dict[str, Any]:
    """The columns of some rows, as arrays of Arrow."""
    pa = _pyarrow()
    records = [record for row in rows for record in table.records(row)]
    cells = zip(*records, strict=True) if records else itertools.repeat(())
    return {
        name: pa.array(column, _arrow_type(kind))
        for (name, kind), column in zip(table.columns.items(), cells, strict=False)
    }


def rows_in(content: bytes, file_format: Literal["parquet", "jsonl"]) -> tuple[int, int]:
    """How many rows a file holds, and how many of them are of images that failed."""
    if file_format == "jsonl":
        lines = content.splitlines()
        return len(lines), sum("error" in json.loads(line) for line in lines)
    _pyarrow()
    import pyarrow.parquet

    errors = pyarrow.parquet.read_table(io.BytesIO(content), columns=["error"]).column("error")
    return len(errors), len(errors) - errors.null_count


def _json_lines(path: Path, rows: Rows, _top: int) -> None:
    with path.open("wb") as file:
        write_json_lines(file, rows)


def _parquet(path: Path, rows: Rows, top: int) -> None:
    with path.open("wb") as file:
        write_parquet(file, rows, like=_example(rows), top=top)


def _arrow_type(kind: Any) -> Any:
    """Arrow's type for that of a column's cells."""
    pa = _pyarrow()
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return pa.list_(_arrow_type(parts[0]), len(parts))
    return (
        pa.list_(_arrow_type(parts[0]))
        if parts
        else {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}[kind]
    )


def _coco(path: Path, rows: Rows, _top: int) -> None:
    """A list of results, as evaluation tools read them; images that failed are not among them."""
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"
        taken: set[int | str] = set()
        for row in rows:
            for entry in _entries(row, taken):
                file.write(before + json.dumps(entry))
                before = ",\n"
        file.write("[]\n" if before.startswith("[") else "\n]\n")


def _entries(row: Row, taken: set[int | str]) -> list[dict[str, Any]]:
    return [] if row.result is None else row.result.to_coco(_image_id(row, taken)) or []


def _image_id(row: Row, taken: set[int | str]) -> int | str:
    """COCO names files by their ids, as 000000397133.jpg; a name that is no number is its own id.

    Where the name of another picture, in another folder or tar file, is ``taken``, the whole path is the id.
    """
    stem = PurePath(row.key).name if row.key else PurePath(row.path).stem
    # Other languages read whole numbers of 64 bits.
    is_number = stem.isascii() and stem.isdecimal() and len(stem) <= _MOST_DIGITS and int(stem) < 2**63
    image_id = int(stem) if is_number else stem
    if image_id in taken:
        image_id = f"{row.path}/{row.key}" if row.key else row.path
    taken.add(image_id)
    return image_id


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(f"writing Parquet needs pyarrow: {install_command('bulk')} ({error})") from None
    return pyarrow
