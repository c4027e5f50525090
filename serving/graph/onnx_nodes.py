"""Appends nodes to an ONNX graph, of the operators that ONNX had in opset 11 and that TensorRT has too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from onestream.serving.engine.served import DOOR_PREFIX

TAIL_PREFIX = DOOR_PREFIX + "tail_"
"""Begins the names of the nodes that are appended."""
OLDEST_OPSET = 11
"""The first in which TopK promises the lower index among equals, and the first with GatherElements."""
_BEFORE_THE_FIRST = -(1 << 31)
"""Where a slice ends that goes down to column 0: -1 would be the last."""


class Nodes:
    """Every method appends nodes for one step and returns the name of what they make: ``TAIL_PREFIX`` and more."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self._opset = opset(model)

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        """One node with one output."""
        name = self._name(op.lower())
        self.graph.node.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def cast(self, values: str, dtype: str) -> str:
        """Of another datatype, by NumPy's name."""
        return self.add("Cast", values, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def top(self, scores: str, k: int) -> tuple[str, str]:
        """The k best of (batch, n), best first, and their places."""
        name = self._name("topk")
        outputs = [f"{name}_values", f"{name}_indices"]
        self.graph.node.append(helper.make_node("TopK", [scores, self.integers([k])], outputs, name=name, axis=1))
        return outputs[0], outputs[1]

    def reduced(self, op: Literal["ReduceL2", "ReduceMax", "ReduceMean"], values: str, *, axis: int) -> str:
        """Without this axis."""
        if self._opset >= 18:
            return self.add(op, values, self.integers([axis]), keepdims=0)
        return self.add(op, values, axes=[axis], keepdims=0)

    def sliced(self, values: str, start: int, stop: int, *, turned: bool = False) -> str:
        """Columns ``start`` to ``stop`` of (batch, rows, columns); with ``turned`` the last comes first."""
        # A slice backwards is far faster than Gather on a CPU.
        limits = (start, stop, 2, 1) if not turned else (stop - 1, start - 1 if start else _BEFORE_THE_FIRST, 2, -1)
        return self.add("Slice", values, *(self.integers([number]) for number in limits))

    def reshaped(self, values: str, shape: Sequence[int]) -> str:
        """In another shape, with 0 and -1 as Reshape has them."""
        return self.add("Reshape", values, self.integers(shape))

    def scaled(self, values: str, factors: npt.ArrayLike) -> str:
        """Times a constant."""
        return self.add("Mul", values, self.floats(factors))

    def floats(self, values: npt.ArrayLike) -> str:
        """A constant, float32."""
        return self._constant(np.asarray(values, np.float32))

    def integers(self, values: npt.ArrayLike) -> str:
        """A constant, int64."""
        return self._constant(np.asarray(values, np.int64))

    def _constant(self, values: npt.NDArray[Any]) -> str:
        name = f"{TAIL_PREFIX}constant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _name(self, kind: str) -> str:
        return f"{TAIL_PREFIX}{kind}_{len(self.graph.node)}"


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX' own operators that a model asks for."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
