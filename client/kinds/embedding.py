"""What the network makes of one image as a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client.kinds.base import Array, Line, Result, Schema, tensor_line
from onestream.wire.tensor_names import EMBEDDING


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Result):
    """What the network makes of one image as a vector: float32 (values)."""

    vector: npt.NDArray[np.float32]

    kind: ClassVar[str] = "embedding"
    noun: ClassVar[str] = "vectors"
    what: ClassVar[str] = "output"
    where: ClassVar[str] = "values"

    def similarity(self, other: Embedding) -> float:
        """The cosine of the angle to another vector, -1 to 1; 0 where one of them is all zeros.

        Raises ValueError where the other has another length.
        """
        if self.vector.shape != other.vector.shape:
            raise ValueError(f"one embedding has {len(self.vector)} values, the other {len(other.vector)}")
        one, two = self.vector.astype(np.float64), other.vector.astype(np.float64)
        lengths = float(np.linalg.norm(one) * np.linalg.norm(two))
        return min(1.0, max(-1.0, float(one @ two) / lengths)) if lengths else 0.0

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        return {"vector": found[EMBEDDING]}

    def values(self) -> dict[str, Any]:
        return {EMBEDDING: self.vector.tolist()}

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        return {EMBEDDING: Any if is_flat else list[float]}

    def summary(self) -> list[Line]:
        return [tensor_line(EMBEDDING, self.vector)]
