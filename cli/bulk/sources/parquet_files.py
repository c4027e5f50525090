"""Images in a column of a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from onestream.cli.bulk.sources import remote
from onestream.cli.bulk.sources.samples import Sample, as_text, too_large, unreadable_sample
from onestream.client import UnreadableInput
from onestream.wire.install import install_command

PARQUET_SUFFIXES = (".parquet",)
"""Endings of files that are read as Parquet files, in lower or upper case."""

_ROWS_AT_ONCE = 64
_KEY = "key"


def in_parquet(name: str, column: str | None = None) -> Iterator[Sample]:
    """The images in a column of bytes, or of records with a field ``bytes``, as Hugging Face's data sets have them.

    ``column`` is its name, by default that of the only one. A sample's key is what a column *key* of texts says, and
    without that the row's number, from 0.
    """
    try:
        with ExitStack() as stack:
            file = stack.enter_context(_opened(name))
            chosen = _column(file.schema_arrow, column)
            has_key = _is_text(file.schema_arrow, _KEY)
            number = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[chosen, *([_KEY] if has_key else [])]):
                keys = batch.column(_KEY) if has_key else None
                for row, value in enumerate(_bytes_of(batch.column(chosen))):
                    key = str(number) if keys is None or keys[row].as_py() is None else keys[row].as_py()
                    yield _sample(name, as_text(key), value)
                    number += 1
    except Exception as error:  # Arrow's errors of damaged files are of several families
        yield unreadable_sample(name, error)


def count_rows(name: str) -> int:
    """How many images a Parquet file holds. Raises what Arrow raises of a file that cannot be read."""
    with _opened(name) as file:
        return int(file.metadata.num_rows)


def _opened(name: str) -> Any:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ImportError(f"reading Parquet needs pyarrow: {install_command('bulk')} ({error})") from None
    if not remote.is_address(name) and os.path.exists(name) and not os.path.isfile(name):
        # Opening a pipe would wait for who writes it, and none can be read from its end.
        raise OSError(f"{name} is no regular file")
    # By default a row group is read whole before its first row is there.
    return ParquetFile(
        remote.open_file(name) if remote.is_address(name) else name, pre_buffer=False, buffer_size=remote.READ_AT_ONCE
    )


def _column(schema: Any, wanted: str | None) -> str:
    fitting = [field.name for field in schema if _holds_bytes(field.type)]
    if wanted is not None:
        if wanted not in fitting:
            raise ValueError(f"no column {wanted!r} of bytes; there are {', '.join(fitting) or 'none'}")
        return wanted
    if len(fitting) != 1:
        raise ValueError(f"{len(fitting)} columns of bytes ({', '.join(fitting)}), expected 1; name one by --column")
    return str(fitting[0])


def _holds_bytes(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_bytes(kind.field("bytes").type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_text(schema: Any, name: str) -> bool:
    from pyarrow import types

    index = schema.get_field_index(name)
    kind = schema.field(index).type if index >= 0 else None
    return kind is not None and bool(types.is_string(kind) or types.is_large_string(kind))


def _bytes_of(column: Any) -> Iterator[bytes | None]:
    from pyarrow import types

    values = column.field("bytes") if types.is_struct(column.type) else column
    return (value.as_py() for value in values)


def _sample(name: str, key: str, value: bytes | None) -> Sample:
    def load(max_bytes: int) -> bytes:
        if value is None:
            raise UnreadableInput("cannot be read: no bytes", name=f"{as_text(name)}: {key}")
        if len(value) > max_bytes:
            raise too_large(len(value), max_bytes)
        return value

    return Sample(as_text(name), key, load, at_any_time=True)
