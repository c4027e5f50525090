"""Samples in Parquet files, read a row group at a time."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.storage.files import Version, check_version, files_named, version_of
from onestream.preprocess.storage.parquet import bytes_of, image_column, open_parquet
from onestream.preprocess.training.sources.blocks import KEPT_BYTES, RecentBlocks
from onestream.preprocess.training.sources.columns import (
    NO_IMAGE,
    LabelColumns,
    check_columns,
    label_columns,
    labels_in,
)
from onestream.preprocess.training.sources.labels import NO_LABEL, Label, LabelKind, Labels

_METADATA = b"huggingface"


class ParquetFiles:
    """The rows of Parquet files; see ``read_parquet``. ``block_starts`` are the first rows of the row groups."""

    def __init__(
        self,
        files: Sequence[str],
        groups: Sequence[Sequence[int]],
        column: str,
        labels: Sequence[Label],
        *,
        versions: Sequence[Version],
        kind: Labels | None,
        kept_bytes: int,
    ) -> None:
        self.files, self.labels, self.kind = tuple(files), tuple(labels), kind
        self.classes: tuple[str, ...] = () if kind is None else kind.classes
        self._column, self._versions = column, tuple(versions)
        self._groups = [(file, group) for file, sizes in enumerate(groups) for group in range(len(sizes))]
        self._first_rows = [0, *accumulate(sum(sizes) for sizes in groups)]
        sizes = [size for of_file in groups for size in of_file]
        self.block_starts = np.array([0, *accumulate(sizes)][:-1], np.int64)
        self._blocks: RecentBlocks[list[bytes | None]] = RecentBlocks(self._read_block, kept_bytes)

    def __len__(self) -> int:
        """Number of rows."""
        return self._first_rows[-1]

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        number = int(np.searchsorted(self.block_starts, index, side="right")) - 1
        image = self._blocks[number][index - int(self.block_starts[number])]
        if image is None:
            raise BadSample(NO_IMAGE)
        return image

    def label(self, index: int) -> Label:
        """See ``Samples.label``."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """The file and the row in it, from 0."""
        file = bisect_right(self._first_rows, index) - 1
        return f"{self.files[file]}: row {index - self._first_rows[file]}"

    def _read_block(self, number: int) -> tuple[list[bytes | None], int]:
        file, group = self._groups[number]
        try:
            check_version(self.files[file], self._versions[file])
            with open_parquet(self.files[file]) as opened:
                column = opened.read_row_group(group, columns=[self._column]).column(self._column)
                rows = [image for chunk in column.chunks for image in bytes_of(chunk)]
        except Exception as error:  # Arrow's errors of damaged files are of several families
            raise BadSample(f"row group {group} cannot be read: {_first_line(error)}") from None
        return rows, sum(len(image) for image in rows if image is not None)


def read_parquet(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    image: str | None = None,
    label: LabelColumns = "label",
    labels: LabelKind = "class",
    classes: Sequence[str] | None = None,
    kept_bytes: int = KEPT_BYTES,
) -> ParquetFiles:
    """Read Parquet files with a column of images, as bytes or as Hugging Face's records with a field ``bytes``.

    ``files``: paths or addresses, also with ``{0000..0127}`` and ``*``. ``image``: the column of images, by default the
    only one. ``label``: the column of the label, or several, as of ``read_labels``; None for samples without labels.
    ``labels`` is the kind of label, with ``classes`` the names of all classes, by default those that Hugging Face's
    library wrote into the file: see ``Labels``. Its label -1 is none.

    Images are read a row group at a time. ``kept_bytes``: how much of these stays in the memory of each process.

    Raises ``BadDataset`` naming the file, and the row where there is one: for a damaged file, a column that is missing,
    a label that is none of its kind. A row without an image, and those of a damaged row group or of a
    file that has changed since, are bad when they are read.
    """
    if kept_bytes < 1:
        raise ValueError(f"kept_bytes must be 1 or more, got {kept_bytes}")
    try:
        names = files_named(files)
    except OSError as error:
        raise BadDataset(f"{files} cannot be listed: {error}") from None
    wanted = label_columns(label)
    versions: list[Version] = []
    groups: list[list[int]] = []
    found: dict[str, list[Any]] = {one: [] for one in wanted}
    known: tuple[str, ...] | None = None
    for name in names:
        try:
            versions.append(version_of(name))
            with open_parquet(name) as opened:
                schema, about = opened.schema_arrow, opened.metadata
                image = image_column(schema, image, option="image=")
                check_columns(wanted, schema.names)
                groups.append([about.row_group(group).num_rows for group in range(about.num_row_groups)])
                for one in wanted:
                    found[one] += opened.read(columns=[one]).column(one).to_pylist()
        except Exception as error:  # as above
            raise BadDataset(f"{name} cannot be read: {_first_line(error)}") from None
        named = _class_names(schema.metadata or {}, label)
        if known not in (None, named):
            raise BadDataset(f"{name} names its classes {', '.join(named)}; earlier files {', '.join(known or ())}")
        known = named
    rows = sum(map(sum, groups))
    if not rows or image is None:
        raise BadDataset(f"no row in {', '.join(names[:3])}")
    options: dict[str, Any] = {"versions": versions, "kept_bytes": kept_bytes}
    plain = ParquetFiles(names, groups, image, [NO_LABEL] * rows, kind=None, **options)
    if label is None:
        return plain
    kind, values = labels_in(found, label, labels, classes or known, plain.name)
    return ParquetFiles(names, groups, image, values, kind=kind, **options)


def _class_names(metadata: Mapping[bytes, bytes], label: LabelColumns) -> tuple[str, ...]:
    """The names of classes that Hugging Face's library wrote beside a column; none where it did not."""
    try:
        feature = json.loads(metadata.get(_METADATA, b"{}"))["info"]["features"][label]
        return tuple(str(one) for one in feature["names"])
    except (ValueError, KeyError, TypeError):
        return ()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
