"""Constants folded into the convolutions of an ONNX graph under construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]


def fold_into_convolutions(
    nodes: list[onnx.NodeProto], constants: dict[str, Array], *, keep: Iterable[str] = ()
) -> None:
    """Fold Mul and Add of a constant for each channel into the convolution before, in place.

    A convolution is reached where nothing else reads its result, through sums with other values too, since the order of
    sums is free. The values ``keep`` stay readable.
    """
    uses = Counter([*(name for node in nodes for name in node.input), *keep])
    makers = {node.output[0]: node for node in nodes}

    def convolution_behind(value: str, operator: str) -> onnx.NodeProto | None:
        maker = makers.get(value)
        if maker is None or uses[value] > 1:
            return None
        if maker.op_type == "Conv":
            return maker
        if maker.op_type == operator == "Add":
            return next((found for side in maker.input if (found := convolution_behind(side, operator))), None)
        return None

    for node in list(nodes):
        if node.op_type not in ("Mul", "Add") or len(constant := [n for n in node.input if n in constants]) != 1:
            continue
        factors = constants[constant[0]]
        value = next(name for name in node.input if name not in constants)
        convolution = convolution_behind(value, node.op_type)
        if convolution is None or (factors.size > 1 and factors.shape[1] != factors.size):
            continue
        _, weights, bias = convolution.input
        channels = np.broadcast_to(factors.reshape(-1), constants[bias].shape)
        if node.op_type == "Mul":
            constants[weights] = constants[weights] * channels[:, None, None, None]
            constants[bias] = constants[bias] * channels
        else:
            constants[bias] = constants[bias] + channels
        nodes.remove(node)
        maker = makers[value]
        maker.output[0] = node.output[0]
        makers[node.output[0]] = maker
