"""How far a network in int8 answers what it answers in float32, by the kind of the pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.postprocess.average_precision import agreement_ap
from onestream.postprocess.kinds import (
    AnyPostprocess,
    Classification,
    Detection,
    Embedding,
    Matte,
    Raw,
    Rotation,
    Segmentation,
    Tensors,
    Text,
    TextLines,
    open_postprocess,
)
from onestream.postprocess.same_lines import quad_iou
from onestream.postprocess.same_objects import Found, best_pairs, compare
from onestream.postprocess.segmentation import class_grid
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size
from onestream.serving.engine.quantization import Agreement
from onestream.wire.tensor_names import CLASS_IDS, DEGREES, MATTE, QUADS, SCORES, TEXTS

CONFIDENT = 0.5
"""A prediction with a score above this is confident."""
_DIGITS = 6


class Judge(ABC):
    """Reads what a network gives as the pipeline answers it, and compares the answers of two networks."""

    def __init__(self, options: AnyPostprocess, definition: Definition, labels: Sequence[str] | None) -> None:
        self._postprocess = open_postprocess(options, definition, labels=labels)

    def answer(self, outputs: Tensors, picture_hw: Size) -> Tensors:
        """What the pipeline answers to a picture of (height, width)."""
        (answer,) = self._postprocess(outputs, [picture_hw])
        return answer

    @abstractmethod
    def compare(self, expected: Sequence[Tensors], got: Sequence[Tensors]) -> Agreement:
        """Of the answers to the same pictures, those of float32 first."""


def judge_of(options: AnyPostprocess, definition: Definition, labels: Sequence[str] | None) -> Judge:
    """The judge of a pipeline, whose activation is decided. ``labels`` are the names of the network's classes."""
    judge: Judge = _JUDGES[type(options)](options, definition, labels)
    return judge


class _Classes(Judge):
    """The best class."""

    _class, _what = CLASS_IDS, "best classes"

    def compare(self, expected: Sequence[Tensors], got: Sequence[Tensors]) -> Agreement:
        same = np.array([_first(a, self._class) == _first(b, self._class) for a, b in zip(expected, got, strict=True)])
        scores = [np.array([_first(answer, SCORES) for answer in side]) for side in (expected, got)]
        return _of_predictions(self._what, same, scores[0] > CONFIDENT, np.abs(scores[0] - scores[1])[same])


class _Rotations(_Classes):
    _class, _what = DEGREES, "turns"


class _Texts(_Classes):
    """The text of a line."""

    _class, _what = TEXTS, "texts"


class _Objects(Judge):
    """Objects that both find: of one class, with an overlap of one half and more."""

    def __init__(self, options: Detection, definition: Definition, labels: Sequence[str] | None) -> None:
        super().__init__(options, definition, labels)
        self._most = options.max_detections

    def compare(self, expected: Sequence[Tensors], got: Sequence[Tensors]) -> Agreement:
        pairs = [(Found.of(one), Found.of(other)) for one, other in zip(expected, got, strict=True)]
        same: list[bool] = []
        scores: list[float] = []
        changes: list[float] = []
        for one, other in pairs:
            compared = compare(one, other)
            for side, both in ((one, {p.one for p in compared.same}), (other, {p.other for p in compared.same})):
                same += [index in both for index in range(len(side))]
                scores += side.scores.tolist()
            changes += [abs(float(one.scores[p.one] - other.scores[p.other])) for p in compared.same]
        precision = agreement_ap(pairs, self._most)
        found = _of_predictions("objects of either", np.array(same), np.array(scores) > CONFIDENT, np.array(changes))
        return found.model_copy(update={"average_precision": None if precision is None else round(precision, _DIGITS)})


class _Lines(Judge):
    """Lines of text that both find, with an overlap of one half and more."""

    def compare(self, expected: Sequence[Tensors], got: Sequence[Tensors]) -> Agreement:
        same: list[bool] = []
        scores: list[float] = []
        changes: list[float] = []
        for one, other in zip(expected, got, strict=True):
            pairs = best_pairs(quad_iou(_quads(one), _quads(other)))
            for side, answer in enumerate((one, other)):
                both = {pair[side] for pair in pairs}
                same += [index in both for index in range(len(answer[SCORES][0]))]
                scores += answer[SCORES][0].tolist()
            changes += [abs(float(one[SCORES][0, i] - other[SCORES][0, j])) for i, j in pairs]
        return _of_predictions("lines of either", np.array(same), np.array(scores) > CONFIDENT, np.array(changes))


class _Mattes(Judge):
    """How much of what either matte shows both show."""

    def compare(self, expected: Sequence[Tensors], got: Sequence[Tensors]) -> Agreement:
        pairs = [(a[MATTE].astype(np.int64), b[MATTE].astype(np.int64)) for a, b in zip(expected, got, strict=True)]
        common = sum(int(np.minimum(one, other).sum()) for one, other in pairs)
        either = sum(int(np.maximum(one, other).sum()) for one, other in pairs)
        differences = np.concatenate([np.abs(one - other).ravel() for one, other in pairs]) / 255
        return _measured(
            "what either matte shows and both do, sum of minima by sum of maxima",
            # Where neither shows anything nothing agrees, as of objects.
            common / either if either else 0.0,
            differences,
        )


class _Grids(Judge):
    """The class of each cell of the network's grid."""

    def __init__(self, options: Segmentation, definition: Definition, labels: Sequence[str] | None) -> None:
        super().__init__(options, definition, labels)
        self._activation = options.activation

    def answer(self, outputs: Tensors, picture_hw: Size) -> Tensors:  # noqa: ARG002
        assert self._activation != "auto", "it is decided"
        (scores,) = outputs.values()
        grid = class_grid(scores.reshape(-1, *scores.shape[-2:]), activation=self._activation)
        return {CLASS_IDS: grid, SCORES: scores}

    def compare(self, expected: Sequence[Tensors], got: Sequence[Tensors]) -> Agreement:
        pairs = list(zip(expected, got, strict=True))
        same = np.concatenate([(one[CLASS_IDS] == other[CLASS_IDS]).ravel() for one, other in pairs])
        changes = np.concatenate([np.abs(one[SCORES] - other[SCORES]).ravel() for one, other in pairs])
        return _measured("cells of the network's grid with the same class", float(same.mean()), changes)


class _Vectors(Judge):
    """The direction of what the network gives."""

    def compare(self, expected: Sequence[Tensors], got: Sequence[Tensors]) -> Agreement:
        pairs = [(_flat(one), _flat(other)) for one, other in zip(expected, got, strict=True)]
        cosines = [_cosine(one, other) for one, other in pairs]
        changes = np.concatenate([np.abs(one - other) for one, other in pairs])
        return _measured("mean cosine of what both give", float(np.mean(cosines)), changes)


_JUDGES: dict[type[AnyPostprocess], Any] = {
    Classification: _Classes,
    Detection: _Objects,
    Embedding: _Vectors,
    Matte: _Mattes,
    Raw: _Vectors,
    Rotation: _Rotations,
    Segmentation: _Grids,
    Text: _Texts,
    TextLines: _Lines,
}


def _of_predictions(
    what: str, same: npt.NDArray[np.bool_], confident: npt.NDArray[np.bool_], changes: npt.NDArray[np.floating[Any]]
) -> Agreement:
    """A share of the confident predictions, or of all where none is confident."""
    chosen = same[confident] if confident.any() else same
    among = f"with a score above {CONFIDENT} " if confident.any() else ""
    return Agreement(
        measure=f"{what} {among}that are the same",
        share=_mean(chosen),
        of=len(chosen),
        all_share=_mean(same),
        all_of=len(same),
        mean_change=_mean(changes),
        largest_change=_rounded(changes.max(initial=0)),
    )


def _measured(what: str, share: float, changes: npt.NDArray[np.floating[Any]]) -> Agreement:
    return Agreement(
        measure=what,
        share=_rounded(share),
        mean_change=_mean(changes),
        largest_change=_rounded(changes.max(initial=0)),
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return _rounded(values.mean()) if len(values) else 0.0


def _rounded(value: Any) -> float:
    return round(float(value), _DIGITS)


def _first(answer: Mapping[str, npt.NDArray[Any]], name: str) -> Any:
    return answer[name].ravel()[0]


def _quads(answer: Tensors) -> list[npt.NDArray[np.float64]]:
    return [np.asarray(quad, np.float64) for quad in answer[QUADS][0]]


def _flat(answer: Tensors) -> npt.NDArray[np.float64]:
    return np.concatenate([np.asarray(answer[name], np.float64).ravel() for name in sorted(answer)])


def _cosine(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else float(np.array_equal(one, other))
