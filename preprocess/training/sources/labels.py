"""What the label of a sample is: a class, several classes, shares of classes, a number or a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from onestream.preprocess.errors import BadDataset

LabelKind = Literal["class", "multi_label", "soft", "number", "vector"]
Label = int | float | npt.NDArray[np.float32]
NO_LABEL = -1
"""The label of a sample that has none."""
_LARGEST_LABEL = 2**63 - 1
"""Batches hold int64."""
_SUM_TOLERANCE = 1e-3
_SHOWN = 8
"""Classes that an error lists."""


@dataclass(frozen=True)
class Labels:
    """How the labels of a dataset are read, and what a batch of them is.

    ``kind``:

    - *class*: a whole number, or one of ``classes``; int64 (batch,).
    - *multi_label*: a list of classes by number or name, a mapping of names to 0 or 1, or an array of 0 and 1; float32
      (batch, classes) of 0 and 1.
    - *soft*: the share of each class, 0 to 1, whose sum is 1, as a list, an array or a mapping of names; float32
      (batch, classes).
    - *number*: float32 (batch,). *vector*: ``size`` numbers; float32 (batch, size).

    Values are rounded to float32; one that this would make infinite or zero is refused. Of a sample that only fills a
    batch up the shares are 0 and the other float32 values NaN.
    """

    kind: LabelKind
    classes: tuple[str, ...] = ()
    size: int = 0

    def value(self, label: Any, name: object) -> Label:
        """The label of the sample ``name``. Raises ``BadDataset`` naming it where it is none of this kind."""
        if self.kind == "class":
            return self._class(label, name) if self.classes else class_label(label, name)
        if self.kind == "number":
            return _number(label, name)
        if self.kind == "multi_label":
            return self._multi_label(label, name)
        return self._vector(label, name)

    def batch(self, values: Sequence[Label | None]) -> torch.Tensor:
        """The labels of a batch; None is that of padding."""
        filler = np.full(self.size, 0 if self.kind == "soft" else np.nan, np.float32) if self.size else np.nan
        rows = [filler if one is None else one for one in values]
        return torch.from_numpy(np.array(rows, np.float32))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each class, and of texts of numbers, where no class is called by a number."""
        names = {name: number for number, name in enumerate(self.classes)}
        digits = {} if any(one.isdecimal() for one in names) else {str(one): one for one in range(len(names))}
        return {**digits, **names}

    def _class(self, label: Any, name: object) -> int:
        if isinstance(label, str):
            if label in self._numbers:
                return self._numbers[label]
        elif 0 <= (number := class_label(label, name)) < len(self.classes):
            return number
        shown = ", ".join(self.classes[:_SHOWN]) + (", …" if len(self.classes) > _SHOWN else "")
        raise BadDataset(
            f"{name} has the label {str(label)[:60]!r}; expected a number of 0 to {len(self.classes) - 1} or one of "
            f"{shown}"
        )

    def _multi_label(self, label: Any, name: object) -> npt.NDArray[np.float32]:
        if isinstance(label, Mapping | np.ndarray | torch.Tensor):
            values = self._vector(label, name)
            if not np.isin(values, (0, 1)).all():
                raise BadDataset(f"{name} has the label {str(label)[:60]}; expected 0 or 1 of each class")
            return values
        listed = [label] if isinstance(label, str | int) else _listed(label, name)
        values = np.zeros(self.size, np.float32)
        for one in listed:
            values[self._class(one, name)] = 1
        # A list of 0 and 1 of each class would be one of numbers, in which 0 or 1 comes twice.
        flags = len(listed) == self.size > values.sum() and all(one in (0, 1) for one in listed)
        if flags or any(isinstance(one, bool) for one in listed):
            raise BadDataset(
                f"{name} has the label {str(label)[:60]}; expected numbers or names of classes: give 0 and 1 of each "
                "class as an array, or read them with labels='vector'"
            )
        return values

    def _vector(self, label: Any, name: object) -> npt.NDArray[np.float32]:
        if isinstance(label, Mapping):
            if self.classes and set(label) != set(self.classes):
                raise BadDataset(
                    f"{name} has labels of {', '.join(map(str, label))}; expected {', '.join(self.classes)}"
                )
            label = [label[one] for one in self.classes or label]
        values = np.array([_number(one, name) for one in _listed(label, name)], np.float32)
        if len(values) != self.size:
            raise BadDataset(f"{name} has {len(values)} numbers as its label; expected {self.size}")
        if self.kind == "soft" and not ((values >= 0).all() and abs(float(values.sum()) - 1) <= _SUM_TOLERANCE):
            raise BadDataset(f"{name} has the label {str(label)[:60]}; expected shares of 0 or more whose sum is 1")
        return values


def labels_like(kind: LabelKind, first: Any, classes: Sequence[str] | None, name: object) -> Labels:
    """How labels of a kind are read, of which ``first`` is one. Raises ``BadDataset`` where classes are missing.

    Without ``classes`` shares and vectors have as many numbers as the first; the names of a mapping are the classes.
    """
    if kind not in get_args(LabelKind):
        raise ValueError(f"labels must be {', '.join(map(repr, get_args(LabelKind)))}, got {kind!r}")
    given = tuple(classes or (first if isinstance(first, Mapping) and kind not in ("class", "number") else ()))
    if len(set(given)) != len(given):
        raise BadDataset("a class is listed twice")
    if kind in ("class", "number"):
        return Labels(kind, given)
    if not given and kind == "multi_label":
        raise BadDataset("several classes for each sample need classes=, the names of all")
    return Labels(kind, given, len(given) if given else len(_listed(first, name)))


def read_as(
    kind: LabelKind, found: Sequence[Any], classes: Sequence[str] | None, name: Callable[[int], str]
) -> tuple[Labels, tuple[Label, ...]]:
    """How the labels of samples are read, and their values; ``name`` gives the samples' names.

    None is the label of a sample that cannot be used, and becomes ``NO_LABEL``. Raises ``BadDataset`` as ``Labels``.
    """
    first = next((index for index, one in enumerate(found) if one is not None), 0)
    read = labels_like(kind, found[first], classes, name(first))
    return read, tuple(NO_LABEL if one is None else read.value(one, name(index)) for index, one in enumerate(found))


def class_label(label: object, name: object) -> int:
    """The label of the sample ``name`` as int64. Raises ``BadDataset`` where that would change it."""
    try:
        number = int(label)  # type: ignore[call-overload]
        # The text of a number is none that changes.
        changes = not isinstance(label, str) and bool(number != label)
    except (TypeError, ValueError, OverflowError):
        number, changes = 0, True
    if changes or abs(number) > _LARGEST_LABEL:
        raise BadDataset(
            f"{name} has the label {str(label)[:60]}; expected a class, which is a whole number; read_labels and "
            "with_labels take labels of other kinds"
        )
    return int(number)


def class_labels(labels: Sequence[object], name: Callable[[int], str]) -> tuple[int, ...]:
    """The labels of samples as int64, of which ``name`` gives the names. Raises ``BadDataset`` as ``class_label``."""
    if all(type(label) is int for label in labels) and np.array(labels).dtype == np.int64:
        return tuple(labels)  # type: ignore[arg-type]
    return tuple(class_label(label, name(index)) for index, label in enumerate(labels))


def _number(label: Any, name: object) -> float:
    try:
        value = float(label)
        with np.errstate(over="ignore", under="ignore"):
            single = float(np.float32(value))
    except (TypeError, ValueError, OverflowError):
        value, single = 0.0, np.nan
    if not np.isfinite(single) or (value and not single):
        raise BadDataset(f"{name} has the label {str(label)[:60]!r}; expected a number that float32 can hold")
    return single


def _listed(label: Any, name: object) -> list[Any]:
    if isinstance(label, np.ndarray | torch.Tensor) and label.ndim == 1:
        return list(label.tolist())
    if isinstance(label, Mapping):
        return list(label.values())
    if isinstance(label, str) or not isinstance(label, Iterable) or isinstance(label, np.ndarray | torch.Tensor):
        raise BadDataset(f"{name} has the label {str(label)[:60]!r}; expected a list")
    return list(label)
