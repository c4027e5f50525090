"""Columns of images in Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from onestream.preprocess.storage import remote
from onestream.wire.install import install_command

PARQUET_SUFFIXES = (".parquet",)
"""Endings of files that are read as Parquet files, in lower or upper case."""
_MOST_SHOWN = 300
"""Characters of a list of columns."""


def open_parquet(name: str) -> Any:
    """A ``pyarrow.parquet.ParquetFile`` of a path or an address. Raises OSError, and what Arrow raises of bad files."""
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


def image_column(schema: Any, wanted: str | None, *, option: str) -> str:
    """The name of the column of images: ``wanted``, or the only one of bytes or of records with a field ``bytes``.

    Raises ``ValueError`` where there is no such column, or more than one; ``option`` is what names one.
    """
    fitting = [field.name for field in schema if _holds_bytes(field.type)]
    if wanted is not None:
        if wanted not in fitting:
            raise ValueError(f"no column {wanted!r} of bytes; there are {', '.join(fitting) or 'none'}")
        return wanted
    if not fitting:
        there = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise ValueError(f"no column of bytes, or of records with a field bytes; there are {there[:_MOST_SHOWN]}")
    if len(fitting) != 1:
        raise ValueError(f"{len(fitting)} columns of bytes ({', '.join(fitting)}), expected 1; name one by {option}")
    return str(fitting[0])


def bytes_of(column: Any) -> Iterator[bytes | None]:
    """The images of an Arrow array; None where a row has no bytes."""
    from pyarrow import types

    values = column.field("bytes") if types.is_struct(column.type) else column
    return (value.as_py() for value in values)


def _holds_bytes(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_bytes(kind.field("bytes").type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))
