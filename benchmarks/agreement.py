"""Competitors must give the same answers before any of them is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.client import Client
from onestream.measure.agreement import Disagreement
from onestream.postprocess.same_lines import lines_of, same_lines
from onestream.wire.comparing import iou, quad_iou
from onestream.wire.tensor_names import BOXES, CLASS_IDS, SCORES

TOLERANCE = 0.03
"""Largest allowed difference of a score, from 0 to 1.

OpenCV's resize differs from ours by at most one of 255 levels, which the network can carry to two
percent of a score; a wrong colour order, filter or crop moves scores by tens of percents.
"""
LEAST_OVERLAP = 0.9
"""Least intersection over union of a box and its partner. One level of 255 moves an edge by less than one percent of
the box; the picture's size with its sides swapped, or an inverse geometry of other scales, by far more."""
LEAST_EQUAL_TEXTS = 0.9
"""Least share of the lines that two competitors read equally. rapidocr pads the lines of a batch to the widest, which
changes a character of a line now and then; wrong crops, another colour order or another threshold change most lines."""

_TIMEOUT_S = 60.0

Answer = dict[str, npt.NDArray[Any]]
"""What a competitor says about one photo: its output tensors, each with a batch dimension of 1."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """How far competitors agree with the first one.

    ``best_classes_equal`` counts the photos whose best class, or every text, is the same for all; by competitor,
    ``largest_difference`` is that of a score, ``least_overlap`` that of a box or of a line with its partner, and
    ``equal_texts`` the share of lines that both read equally.
    """

    best_classes_equal: int
    largest_difference: dict[str, float]
    least_overlap: dict[str, float] = field(default_factory=dict)
    equal_texts: dict[str, float] = field(default_factory=dict)


Agree = Callable[[Mapping[str, Sequence[Answer]], Sequence[str]], Agreed]
"""Compares every competitor's answers with those of the first, photo by photo, whose names follow.

Raises ``Disagreement`` naming competitor, photo and both answers.
"""


def ask(model: str, photos: Sequence[bytes], *, grpc_address: str) -> list[Answer]:
    """The answers of a served model, one request after the other."""
    with Client(grpc_address, timeout_s=_TIMEOUT_S) as client:
        return [client.infer(model, photo) for photo in photos]


def same_best_classes(
    answers: Mapping[str, Sequence[Answer]], names: Sequence[str], *, tolerance: float = TOLERANCE
) -> Agreed:
    """Compare classifications; see ``Agree``.

    Within ``tolerance`` must be the scores at each rank. The best class must be the same, unless the first competitor
    gives the other's best class a score within ``tolerance`` of its own best: then the two are a tie.
    """
    (first, expected), *others = answers.items()
    worst = {}
    for competitor, given in others:
        worst[competitor] = 0.0
        for name, one, other in zip(names, expected, given, strict=True):
            (scores, other_scores), (classes, other_classes) = _rows(one, other, SCORES), _rows(one, other, CLASS_IDS)
            difference = float(np.abs(scores - other_scores).max())
            of_their_best = dict(zip(classes.tolist(), scores.tolist(), strict=True)).get(int(other_classes[0]), 0.0)
            if difference > tolerance or scores[0] - of_their_best > tolerance:
                raise _disagreement(
                    (competitor, other), (first, one), name, f"the same best class and scores within {tolerance}"
                )
            worst[competitor] = max(worst[competitor], difference)
    return Agreed(_equal_best(answers), worst)


def same_boxes(
    answers: Mapping[str, Sequence[Answer]],
    names: Sequence[str],
    *,
    score_threshold: float,
    tolerance: float = TOLERANCE,
) -> Agreed:
    """Compare detections; see ``Agree``.

    Every object of either must be found by the other: of the same class, with a score within ``tolerance``, and with a
    box whose intersection with its own, divided by their union, is at least 0.9. Left out are those with a score within
    ``tolerance`` of ``score_threshold``, which may be below it for the other.
    """
    (first, expected), *others = answers.items()
    worst, least = {}, {}
    for competitor, given in others:
        worst[competitor], least[competitor] = 0.0, 1.0
        for name, one, other in zip(names, expected, given, strict=True):
            for these, those in ((one, other), (other, one)):
                for index in np.flatnonzero(these[SCORES][0] > score_threshold + tolerance):
                    found = _partner(these, int(index), those, tolerance)
                    if found is None:
                        allowed = f"the same classes, scores within {tolerance}, boxes that overlap by {LEAST_OVERLAP}"
                        raise _disagreement((competitor, other), (first, one), name, allowed)
                    worst[competitor] = max(worst[competitor], found[0])
                    least[competitor] = min(least[competitor], found[1])
    return Agreed(_equal_best(answers), worst, least)


def same_texts(
    answers: Mapping[str, Sequence[Answer]], names: Sequence[str], *, least_equal: float = LEAST_EQUAL_TEXTS
) -> Agreed:
    """Compare what was read; see ``Agree``.

    Of all lines that either found, at least the share ``least_equal`` must be found by both with the same text.
    """
    (first, expected), *others = answers.items()
    worst, least, shares = {}, {}, {}
    all_equal = [True] * len(names)
    for competitor, given in others:
        worst[competitor], least[competitor] = 0.0, 1.0
        equal, lines, differing = 0, 0, ""
        for index, (name, one, other) in enumerate(zip(names, expected, given, strict=True)):
            these, those = lines_of(one), lines_of(other)
            pairs = [(these[i], those[j]) for i, j in same_lines(these, those)]
            alike = [pair for pair in pairs if pair[0].text == pair[1].text]
            equal += len(alike)
            lines += len(these) + len(those) - len(pairs)
            worst[competitor] = max([worst[competitor], *(abs(a.score - b.score) for a, b in alike)])
            least[competitor] = min([least[competitor], *(quad_iou([a.quad], [b.quad])[0, 0] for a, b in pairs)])
            if not len(alike) == len(these) == len(those):
                all_equal[index] = False
                differing = differing or f"{name}: {[b.text for b in those]} against {[a.text for a in these]}"
        shares[competitor] = equal / lines if lines else 1.0
        if shares[competitor] < least_equal:
            raise Disagreement(
                f"{competitor} and {first} read {equal} of {lines} lines equally; allowed is no less than "
                f"{least_equal:.0%}. The first photo about which they disagree is {differing}. Nothing was timed"
            )
    return Agreed(sum(all_equal), worst, least, shares)


def _partner(these: Answer, index: int, those: Answer, tolerance: float) -> tuple[float, float] | None:
    """Difference of score and overlap of an object with what another competitor found; None where there is none."""
    boxes, scores = those[BOXES][0], those[SCORES][0]
    (overlap,) = iou(these[BOXES][0, index : index + 1], boxes)
    differences = np.abs(scores - these[SCORES][0, index])
    same = those[CLASS_IDS][0] == these[CLASS_IDS][0, index]
    possible = np.flatnonzero(same & (differences <= tolerance) & (overlap >= LEAST_OVERLAP))
    if not len(possible):
        return None
    best = possible[overlap[possible].argmax()]
    return float(differences[best]), float(overlap[best])


def _rows(one: Answer, other: Answer, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return one[name][0], other[name][0]


def _equal_best(answers: Mapping[str, Sequence[Answer]]) -> int:
    best = (
        {next(iter(answer[CLASS_IDS][0].tolist()), None) for answer in photo}
        for photo in zip(*answers.values(), strict=True)
    )
    return sum(len(classes) == 1 for classes in best)


def _disagreement(theirs: tuple[str, Answer], firsts: tuple[str, Answer], photo: str, allowed: str) -> Disagreement:
    return Disagreement(
        f"{theirs[0]} and {firsts[0]} disagree about {photo}: {_short(theirs[1])} against {_short(firsts[1])}; allowed "
        f"are {allowed}. Nothing was timed"
    )


def _short(given: Answer) -> str:
    pairs = zip(given[CLASS_IDS][0][:2], given[SCORES][0][:2], strict=True)
    return ", ".join(f"class {i}: {s:.4f}" for i, s in pairs) or "no object"
