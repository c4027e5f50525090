"""What the network makes of a picture as a vector."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from onestream.postprocess.embedding import embeddings
from onestream.postprocess.kinds.base import Opening, Options, Postprocess, Tensors, rows
from onestream.wire.tensor_names import EMBEDDING


class Embedding(Options):
    """What the network makes of a picture as one vector, from a network with one output (batch, values)."""

    takes_regions: ClassVar[bool] = True
    ends_in_graph: ClassVar[bool] = True

    kind: Literal["embedding"] = "embedding"
    normalize: bool = Field(
        default=True, description="divide each vector by its length (L2), so that a dot product is the cosine"
    )

    def open(self, opening: Opening) -> Postprocess:
        """See ``Options.open``."""
        return lambda outputs, _sizes, _parameters=(): rows(outputs if opening.has_tail else _embedding(outputs, self))


def _embedding(outputs: Tensors, options: Embedding) -> Tensors:
    (features,) = outputs.values()
    return {EMBEDDING: embeddings(features, normalize=options.normalize)}
