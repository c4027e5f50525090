"""The classes of one image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from onestream.client._transports.tensors import MAX_STRINGS
from onestream.client.errors import UnexpectedResponse
from onestream.client.kinds.base import Array, Line, Schema
from onestream.client.kinds.listed import Listed
from onestream.wire.tensor_names import CLASS_IDS, LABELS, SCORES


@dataclass(frozen=True, slots=True)
class Label:
    """One class that the network considered, with its score (the larger, the more likely).

    ``label`` is its name; the id as text where the server sends no names.
    """

    label: str
    class_id: int
    score: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"label": self.label, "class_id": self.class_id, "score": self.score}


@dataclass(frozen=True, slots=True)
class Classification(Listed[Label]):
    """The classes of one image, best first; there is at least one. Iteration gives a ``Label`` for each."""

    labels: tuple[Label, ...]

    kind: ClassVar[str] = "classification"
    noun: ClassVar[str] = "classes"
    is_short: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ("labels",)

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    @property
    def top(self) -> Label:
        """The label with the highest score."""
        return self.labels[0]

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        """A server without strings (TensorRT alone) sends no labels; ids stand for them."""
        scores, class_ids = best_first(found, model)
        names = found[LABELS] if LABELS in found else class_ids.astype(str)
        labels = [
            Label(label=str(name), class_id=int(class_id), score=float(score))
            for score, class_id, name in zip(scores, class_ids, names, strict=True)
        ]
        return {"labels": tuple(labels)}

    def values(self) -> dict[str, Any]:
        return {
            SCORES: [label.score for label in self.labels],
            CLASS_IDS: [label.class_id for label in self.labels],
            LABELS: [label.label for label in self.labels],
        }

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        """Classes side by side, of the second on with the rank, as ``label_2``."""
        kinds = {"label": str, "class_id": int, "score": float}
        return {_ranked(name, rank): kind for rank in range(1, top + 1) for name, kind in kinds.items()}

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        ranks = enumerate(self.labels, start=1)
        return [{_ranked(name, rank): value for rank, label in ranks for name, value in label.to_dict().items()}]

    def summary(self) -> list[Line]:
        return [Line(one.label, one.score) for one in self.labels]

    def best(self, top: int) -> Classification:
        return replace(self, labels=self.labels[:top])


def best_first(found: dict[str, Array], model: str) -> tuple[Array, Array]:
    """Scores and class ids of classes or objects, the best first. Raises UnexpectedResponse."""
    scores = found[SCORES]
    if len(scores) > MAX_STRINGS:
        raise UnexpectedResponse(f"model {model!r} answered {len(scores)} classes, expected at most {MAX_STRINGS}")
    if (np.diff(scores) > 0).any():
        raise UnexpectedResponse(f"model {model!r} answered the scores {scores}, expected the best first")
    return scores, found[CLASS_IDS]


def _ranked(name: str, rank: int) -> str:
    return name if rank == 1 else f"{name}_{rank}"
