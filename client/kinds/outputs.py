"""Outputs of pipelines without a result of their own, as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.client._transports.base import Tensors
from onestream.client.kinds.base import Array, Line, Result, Schema, array_of, cell, plain, tensor_line, type_of
from onestream.wire.tensor_names import MATTE

OF_ROWS = ("path", "key", "latency_ms", "error", "reason")
"""Columns of every table, whose names a tensor may have, too."""
_LISTED = 64
"""A tensor of at most so many values is written out beside a frame; of a larger one only its kind."""

OutputsT = TypeVar("OutputsT", bound="Outputs")


@dataclass(frozen=True, slots=True, eq=False)
class Outputs(Result):
    """What a pipeline of a kind without a result of its own answered: arrays by name, each with batch dimension 1."""

    tensors: Tensors = field(repr=False)

    kind: ClassVar[str] = "raw"
    noun: ClassVar[str] = "tensors"
    what: ClassVar[str] = "output"
    where: ClassVar[str] = "values"

    @classmethod
    def from_tensors(cls: type[OutputsT], model: str, tensors: Tensors, request_id: str, latency_ms: float) -> OutputsT:
        """The outputs, whatever they are."""
        return cls(tensors, model=model, request_id=request_id, latency_ms=latency_ms)

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        return {"tensors": found}

    @classmethod
    def from_dict(cls: type[OutputsT], said: Mapping[str, Any]) -> OutputsT:
        """Texts stay ``str``."""
        return cls(
            {name: array_of(value) for name, value in said["tensors"].items()},
            model=said.get("model", ""),
            request_id=said.get("request_id", ""),
            latency_ms=said.get("latency_ms", 0.0),
        )

    def values(self) -> dict[str, Any]:
        """Texts are read as UTF-8, and what is no finite number is None."""
        return {"tensors": {name: plain(array) for name, array in self.tensors.items()}}

    def values_of_frame(self) -> dict[str, Any]:
        """Without the batch; large tensors by datatype and shape only."""
        return {"tensors": {name: _short(array[0]) for name, array in self.tensors.items()}}

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        """Its tensors without the batch dimension, by their names."""
        names = sorted(self.tensors)
        return {_column(name): Any if is_flat else type_of(self.tensors[name][0]) for name in names}

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        values = {_column(name): plain(np.asarray(self.tensors[name][0])) for name in sorted(self.tensors)}
        return [{name: cell(value) for name, value in values.items()} if is_flat else values]

    def summary(self) -> list[Line]:
        return [tensor_line(name, array) for name, array in sorted(self.tensors.items())]

    def arrays(self) -> dict[str, Array]:
        return self.tensors


@dataclass(frozen=True, slots=True, eq=False)
class Matte(Outputs):
    """The matte of one picture: ``tensors["matte"]``, uint8 (1, height, width) of the network's picture."""

    kind: ClassVar[str] = "matte"
    noun: ClassVar[str] = "mattes"
    is_tabular: ClassVar[bool] = False

    @property
    def levels(self) -> npt.NDArray[np.uint8]:
        matte: npt.NDArray[np.uint8] = self.tensors[MATTE][0]
        return matte


def _column(name: str) -> str:
    return f"tensor_{name}" if name in OF_ROWS else name


def _short(array: Array) -> Any:
    if array.size > _LISTED or array.dtype == object:
        return {"dtype": str(array.dtype), "shape": list(array.shape)}
    return array.tolist()
