"""From a network's features to embeddings: one vector for each picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SHORTEST = 1e-12
"""What a shorter vector is divided by, so that zeros stay zeros: ``eps`` of torch.nn.functional.normalize."""


def embeddings(features: npt.NDArray[np.floating[Any]], *, normalize: bool) -> npt.NDArray[np.float32]:
    """Vectors, float32 (batch, values), of features (batch, values) or (batch, values, 1, 1).

    With ``normalize`` each is divided by its length, as torch.nn.functional.normalize does.
    """
    vectors = features.reshape(len(features), -1).astype(np.float32)
    if not normalize:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    divided: npt.NDArray[np.float32] = vectors / np.maximum(lengths, np.float32(SHORTEST))
    return divided
