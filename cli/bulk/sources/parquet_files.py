"""Images in a column of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from onestream.cli.bulk.sources.samples import Sample, as_text, too_large, unreadable_sample
from onestream.client import UnreadableInput
from onestream.preprocess.storage.parquet import bytes_of, image_column, open_parquet

_ROWS_AT_ONCE = 64
_KEY = "key"


def in_parquet(name: str, column: str | None = None) -> Iterator[Sample]:
    """The images in a column of bytes, or of records with a field ``bytes``, as Hugging Face's data sets have them.

    ``column`` is its name, by default that of the only one. A sample's key is what a column *key* of texts says, and
    without that the row's number, from 0.
    """
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open_parquet(name))
            chosen = image_column(file.schema_arrow, column, option="--column")
            has_key = _is_text(file.schema_arrow, _KEY)
            number = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[chosen, *([_KEY] if has_key else [])]):
                keys = batch.column(_KEY) if has_key else None
                for row, value in enumerate(bytes_of(batch.column(chosen))):
                    key = str(number) if keys is None or keys[row].as_py() is None else keys[row].as_py()
                    yield _sample(name, as_text(key), value)
                    number += 1
    except Exception as error:  # Arrow's errors of damaged files are of several families
        yield unreadable_sample(name, error)


def count_rows(name: str) -> int:
    """How many images a Parquet file holds. Raises what Arrow raises of a file that cannot be read."""
    with open_parquet(name) as file:
        return int(file.metadata.num_rows)


def _is_text(schema: Any, name: str) -> bool:
    from pyarrow import types

    index = schema.get_field_index(name)
    kind = schema.field(index).type if index >= 0 else None
    return kind is not None and bool(types.is_string(kind) or types.is_large_string(kind))


def _sample(name: str, key: str, value: bytes | None) -> Sample:
    def load(max_bytes: int) -> bytes:
        if value is None:
            raise UnreadableInput("cannot be read: no bytes", name=f"{as_text(name)}: {key}")
        if len(value) > max_bytes:
            raise too_large(len(value), max_bytes)
        return value

    return Sample(as_text(name), key, load, at_any_time=True)
