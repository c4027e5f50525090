"""Shared by the readers of tables: what a row's label is, in one column or in several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onestream.preprocess.errors import BadDataset
from onestream.preprocess.training.sources.labels import NO_LABEL, Label, LabelKind, Labels, read_as

LabelColumns = str | Sequence[str] | None
NO_IMAGE = "the row has no image"


def label_columns(label: LabelColumns) -> tuple[str, ...]:
    """The columns that hold the label."""
    return () if label is None else (label,) if isinstance(label, str) else tuple(label)


def check_columns(wanted: Sequence[str], columns: Sequence[str]) -> None:
    """Raise ``ValueError`` where a column of the label is missing, or there are several of its name."""
    if missing := [one for one in wanted if one not in columns]:
        raise ValueError(
            f"no column {', '.join(missing)}; there are {', '.join(columns)}. label=None reads images without labels"
        )
    if twice := [one for one in wanted if columns.count(one) > 1]:
        raise ValueError(f"the column {twice[0]} more than once")


def labels_in(
    columns: Mapping[str, Sequence[Any]],
    label: str | Sequence[str],
    kind: LabelKind,
    classes: Sequence[str] | None,
    name: Callable[[int], str],
) -> tuple[Labels, tuple[Label, ...]]:
    """The labels in one column, or in several by their names. Raises ``BadDataset`` naming the sample.

    Of class numbers -1 is no label, as Hugging Face's library has it.
    """
    for one, values in columns.items():
        if None in values:
            raise BadDataset(f"{name(list(values).index(None))} has no {one}")
    if not isinstance(label, str):
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return read_as(kind, rows, classes, name)
    found = columns[label]
    return read_as(kind, [None if kind == "class" and one == NO_LABEL else one for one in found], classes, name)
