"""From a classifier of angles to degrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.postprocess.classification import Activation, top_k


def rotations(
    logits: npt.NDArray[np.floating[Any]], degrees: Sequence[int], *, min_score: float, activation: Activation
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Degrees int32 (batch, 1) and scores float32 (batch, 1) of the best class of each row of (batch, classes).

    ``degrees`` are those of the classes. Below ``min_score`` they are 0, and so they are of a row with a value that is
    not finite, whose score is 0.
    """
    finite = np.isfinite(logits).all(axis=1, keepdims=True)
    scores, classes = top_k(np.where(finite, logits, 0), 1, activation=activation)
    scores = np.where(finite, scores, np.float32(0))
    sure = scores >= np.float32(min_score)
    return np.where(sure & finite, np.array(degrees, np.int32)[classes], np.int32(0)), scores
