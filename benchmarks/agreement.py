"""Competitors must give the same answers before any of them is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc as triton

from onestream.measure.agreement import Disagreement
from onestream.wire.tensor_names import CLASS_IDS, IMAGE, SCORES

TOLERANCE = 0.03
"""Largest allowed difference of a score, from 0 to 1.

DALI's resize differs from Pillow's by at most one of 255 levels, which the network can carry to two percent of a score;
a wrong colour order, filter or crop moves scores by tens of percents.
"""

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a competitor says about one photo: the best classes, best first, and their scores, 0 to 1."""

    class_ids: tuple[int, ...]
    scores: tuple[float, ...]


def ask(model: str, photos: Sequence[bytes], *, grpc_address: str) -> list[Answer]:
    """The answers of a served model, one request after the other."""
    answers = []
    with triton.InferenceServerClient(grpc_address) as client:
        for photo in photos:
            image = triton.InferInput(IMAGE, [1, len(photo)], "UINT8")
            image.set_data_from_numpy(np.frombuffer(photo, np.uint8)[None])
            result = client.infer(model, [image], client_timeout=_TIMEOUT_S)
            answers.append(answer(result.as_numpy(CLASS_IDS)[0], result.as_numpy(SCORES)[0]))
    return answers


def answer(class_ids: Sequence[int], scores: Sequence[float]) -> Answer:
    """An answer from rows of a model's outputs."""
    return Answer(tuple(int(i) for i in class_ids), tuple(float(s) for s in scores))


def check(
    answers: Mapping[str, Sequence[Answer]], names: Sequence[str], *, tolerance: float = TOLERANCE
) -> dict[str, float]:
    """Compare every competitor with the first one, photo by photo; returns the largest difference of a score for each.

    Within ``tolerance`` must be the scores at each rank. The best class must be the same, unless the first competitor
    gives the other's best class a score within ``tolerance`` of its own best: then the two are a tie. ``names`` are the
    photos'. Raises ``Disagreement`` naming competitor, photo and both answers.
    """
    (first, expected), *others = answers.items()
    worst = {}
    for competitor, given in others:
        worst[competitor] = 0.0
        for name, one, other in zip(names, expected, given, strict=True):
            difference = max(abs(a - b) for a, b in zip(one.scores, other.scores, strict=True))
            of_their_best = dict(zip(one.class_ids, one.scores, strict=True)).get(other.class_ids[0], 0.0)
            if difference > tolerance or one.scores[0] - of_their_best > tolerance:
                raise Disagreement(
                    f"{competitor} and {first} disagree about {name}: {_short(other)} against {_short(one)}; allowed "
                    f"are the same best class and scores within {tolerance}. Nothing was timed"
                )
            worst[competitor] = max(worst[competitor], difference)
    return worst


def _short(given: Answer) -> str:
    return ", ".join(f"class {i}: {s:.4f}" for i, s in zip(given.class_ids[:2], given.scores[:2], strict=True))
