"""Greedy decoding of CTC: from the best class of each step to text.

Connectionist temporal classification: https://www.cs.toronto.edu/~graves/icml_2006.pdf, section 3.2, best path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_Ids = npt.NDArray[np.int32]
_Scores = npt.NDArray[np.float32]

_LARGEST = np.finfo(np.float32).max
_BLANK = 0


class Texts(NamedTuple):
    """What a batch of lines says: ``texts`` as UTF-8; ``scores`` float32 (batch,), the mean of the characters', and 0
    where there is none; ``character_scores`` float32 for each text, one for each of its characters."""

    texts: list[bytes]
    scores: _Scores
    character_scores: list[_Scores]


class Decoder:
    """Decodes with the characters of the classes from 1 on; class 0 is the blank."""

    def __init__(self, characters: Sequence[str]) -> None:
        self._characters = [b"", *(character.encode() for character in characters)]

    def __call__(self, classes: _Ids, scores: _Scores) -> Texts:
        """The texts of a batch, from the best class of each step and its probability, both (batch, steps).

        Equal classes one after the other are one character, with the score of the first. A class without a character
        and a score that is not finite stand for the blank.
        """
        classes, scores = np.ascontiguousarray(classes, np.int32), np.ascontiguousarray(scores, np.float32)
        steps = np.empty(classes.shape, np.int64)
        counts = np.empty(len(classes), np.int64)
        _choose(classes, scores, len(self._characters), steps, counts)
        texts, means, of_characters = [], np.zeros(len(classes), np.float32), []
        for line, count in enumerate(counts.tolist()):
            chosen = steps[line, :count]
            texts.append(b"".join([self._characters[one] for one in classes[line, chosen].tolist()]))
            own = scores[line, chosen]
            if count:
                means[line] = own.mean(dtype=np.float64)
            of_characters.append(own)
        return Texts(texts, means, of_characters)


@compiled("void(int32[:,::1], float32[:,::1], int64, int64[:,::1], int64[::1])")
def _choose(
    classes: _Ids, scores: _Scores, known: int, steps: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> None:
    """Fill ``steps`` with those of each line that begin a character, and ``counts`` with how many these are."""
    for line in range(classes.shape[0]):
        count, before = 0, _BLANK
        for step in range(classes.shape[1]):
            own = classes[line, step]
            if not (0 <= own < known and abs(scores[line, step]) <= _LARGEST):
                own = _BLANK
            if own not in (_BLANK, before):
                steps[line, count] = step
                count += 1
            before = own
        counts[line] = count
