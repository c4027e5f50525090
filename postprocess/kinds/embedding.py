"""What the network makes of a picture as a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.postprocess import BadNetwork
from onestream.postprocess.kinds.base import Opening, Options, Postprocess, Tensors, rows
from onestream.postprocess.network import Made, NetworkOutput, Nodes, shapes_text
from onestream.preprocess import Definition
from onestream.wire.tensor_names import EMBEDDING

_SHORTEST = 1e-12
"""What a shorter vector is divided by, so that zeros stay zeros: ``eps`` of torch.nn.functional.normalize."""


class Embedding(Options):
    """What the network makes of a picture as one vector, from a network with one output (batch, values)."""

    takes_regions: ClassVar[bool] = True
    ends_in_graph: ClassVar[bool] = True

    kind: Literal["embedding"] = "embedding"
    normalize: bool = Field(
        default=True, description="divide each vector by its length (L2), so that a dot product is the cosine"
    )

    def open(self, opening: Opening) -> Postprocess:
        return lambda outputs, _sizes, _parameters=(): rows(outputs if opening.has_tail else _embedding(outputs, self))

    def suited_to(self, outputs: Sequence[NetworkOutput]) -> Embedding:
        dims = outputs[0].dims
        is_vector = len(dims) == 1 or (len(dims) == 3 and dims[1:] == (1, 1))
        if len(outputs) != 1 or not is_vector or not outputs[0].is_float:
            raise BadNetwork(
                "embedding takes one output of floats, (batch, values) or (batch, values, 1, 1); got "
                f"{shapes_text(outputs)}. network_outputs: [NAME] in the pipeline file takes another tensor of the "
                "network"
            )
        return self

    def lengths(self, outputs: Sequence[NetworkOutput], definition: Definition, names: int | None) -> dict[str, int]:
        values = outputs[0].dims[0]
        return {} if values is None else {"values": values}

    def tail(self, nodes: Nodes, outputs: Sequence[NetworkOutput]) -> dict[str, Made]:
        """What ``embeddings`` computes."""
        (output,) = outputs
        vectors = nodes.add("Flatten", nodes.cast(output.name, "float32"), axis=1)
        if self.normalize:
            lengths = nodes.reshaped(nodes.reduced("ReduceL2", vectors, axis=1), [-1, 1])
            vectors = nodes.add("Div", vectors, nodes.add("Max", lengths, nodes.floats(_SHORTEST)))
        return {EMBEDDING: Made(vectors, "float32", output.dims[:1])}


def _embedding(outputs: Tensors, options: Embedding) -> Tensors:
    (features,) = outputs.values()
    return {EMBEDDING: embeddings(features, normalize=options.normalize)}


def embeddings(features: npt.NDArray[np.floating[Any]], *, normalize: bool) -> npt.NDArray[np.float32]:
    """Vectors, float32 (batch, values), of features (batch, values) or (batch, values, 1, 1).

    With ``normalize`` each is divided by its length, as torch.nn.functional.normalize does.
    """
    vectors = features.reshape(len(features), -1).astype(np.float32)
    if not normalize:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    divided: npt.NDArray[np.float32] = vectors / np.maximum(lengths, np.float32(_SHORTEST))
    return divided
