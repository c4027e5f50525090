"""Finds the best classes in logits."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Activation = Literal["softmax", "none"]


def top_k(
    logits: npt.NDArray[np.floating[Any]], k: int, *, activation: Activation = "softmax"
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """The ``k`` best classes of each row, best first.

    ``logits`` is (batch, classes), float. Returns ``scores`` (batch, k) float32 and ``class_ids`` (batch, k) int32.
    ``softmax`` gives scores in 0 to 1 that sum to 1 over all classes; ``none`` returns the logits. Equal scores are
    ordered by class id. Raises ``ValueError`` where k is not in 1 to the number of classes.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits must be (batch, classes), got shape {logits.shape}")
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must be from 1 to {logits.shape[1]}, the number of classes, got {k}")
    values = logits.astype(np.float32)
    # A stable sort of the negated values keeps the lower class id first among equals.
    class_ids = np.argsort(-values, axis=1, kind="stable")[:, :k]
    if activation == "softmax":
        exponentials = np.exp(values - values.max(axis=1, keepdims=True))
        values = exponentials / exponentials.sum(axis=1, keepdims=True)
    return np.take_along_axis(values, class_ids, axis=1), class_ids.astype(np.int32)
