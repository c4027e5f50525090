"""Writes rows as CSV, JSON lines or Parquet; a file is complete or not there."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from onestream.cli.bulk.journal import replace_durably
from onestream.cli.bulk.rows import Row, columns
from onestream.wire.install import install_command

_ROW_GROUP = 50_000
"""Rows of a Parquet row group, and how many are held in memory at once."""

Writer = Callable[[Path, Iterable[Row], int], None]


def writer_for(path: Path) -> Writer:
    """The writer for a file of this name. Raises ValueError for another ending, ImportError for a missing library."""
    kinds: dict[str, Writer] = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
    if path.suffix.lower() not in kinds:
        raise ValueError(f"--to {path} ends in {path.suffix!r}, expected {', '.join(kinds)}")
    writer = kinds[path.suffix.lower()]
    if writer is _parquet:
        _pyarrow()
    return writer


def write_whole(path: Path, rows: Iterable[Row], top: int) -> None:
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
        csv.writer(self._file).writerow([row.path, row.key, row.error, row.reason])
        self._file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def _csv(path: Path, rows: Iterable[Row], top: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([name for name, _ in columns(top)])
        writer.writerows(row.cells(top) for row in rows)


def _json_lines(path: Path, rows: Iterable[Row], _top: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(row.to_json() + "\n" for row in rows)


def _parquet(path: Path, rows: Iterable[Row], top: int) -> None:
    pa = _pyarrow()
    import pyarrow.parquet

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns(top)])
    source = iter(rows)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while group := [row.cells(top) for row in itertools.islice(source, _ROW_GROUP)]:
            writer.write_table(
                pa.Table.from_arrays([*map(pa.array, zip(*group, strict=True), schema.types)], schema=schema)
            )


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(f"writing Parquet needs pyarrow: {install_command('bulk')} ({error})") from None
    return pyarrow
