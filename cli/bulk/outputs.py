"""Writes rows as CSV, JSON lines, Parquet or COCO's results; a file is complete or not there."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

from onestream.cli.bulk.journal import replace_durably
from onestream.cli.bulk.rows import Answer, Row
from onestream.cli.bulk.tables import one_for_each_find, one_for_each_image
from onestream.client import Classification, Detections
from onestream.wire.install import install_command

_ROW_GROUP, _ROW_GROUP_OF_LISTS = 50_000, 2_000
"""Rows of a Parquet row group, and how many are held in memory at once."""

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


def check_takes(path: Path, result: Answer) -> None:
    """Raise Unwritable where a file of this name cannot hold such a result."""
    if writer_for(path) is _coco and not isinstance(result, Detections):
        raise Unwritable(
            f"{path} is to hold COCO's results, which are objects; the pipeline answers classes: use .jsonl"
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
        csv.writer(self._file).writerow([row.path, row.key, row.error, row.reason])
        self._file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def _kind(rows: Rows) -> type[Answer]:
    """The kind of all results; classes where every image failed."""
    return next((type(row.result) for row in rows if row.result is not None), Classification)


def _csv(path: Path, rows: Rows, top: int) -> None:
    table = one_for_each_find(_kind(rows), top)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([name for name, _ in table.columns])
        for row in rows:
            writer.writerows(table.records(row))


def _json_lines(path: Path, rows: Rows, _top: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(row.to_json() + "\n" for row in rows)


def _parquet(path: Path, rows: Rows, top: int) -> None:
    pa = _pyarrow()
    import pyarrow.parquet

    answers = _kind(rows)
    table = one_for_each_image(answers, top)
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    types |= {
        list[str]: pa.list_(pa.string()),
        list[int]: pa.list_(pa.int64()),
        list[float]: pa.list_(pa.float64()),
        list[list[float]]: pa.list_(pa.list_(pa.float64(), 4)),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in table.columns])
    at_once = _ROW_GROUP if answers is Classification else _ROW_GROUP_OF_LISTS
    source = (record for row in rows for record in table.records(row))
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while group := list(itertools.islice(source, at_once)):
            writer.write_table(
                pa.Table.from_arrays([*map(pa.array, zip(*group, strict=True), schema.types)], schema=schema)
            )


def _coco(path: Path, rows: Rows, _top: int) -> None:
    """A list of results, as evaluation tools read them; images that failed are not among them."""
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"
        taken: set[int | str] = set()
        for row in rows:
            for entry in row.result.to_coco(_image_id(row, taken)) if isinstance(row.result, Detections) else ():
                file.write(before + json.dumps(entry))
                before = ",\n"
        file.write("[]\n" if before.startswith("[") else "\n]\n")


def _image_id(row: Row, taken: set[int | str]) -> int | str:
    """COCO names files by their ids, as 000000397133.jpg; a name that is no number is its own id.

    Where the name of another picture, in another folder or tar file, is ``taken``, the whole path is the id.
    """
    stem = PurePath(row.key).name if row.key else PurePath(row.path).stem
    image_id = int(stem) if stem.isascii() and stem.isdecimal() else stem
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
