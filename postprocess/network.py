"""What the kinds see of a network: its outputs, the nodes at its end, and the errors of one that does not suit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy.typing as npt


class ServingError(Exception):
    """Base of everything that building and serving raise on purpose; its tree is drawn in serving/errors.py."""


class BadPipeline(ServingError):
    """A pipeline file is malformed."""


class BadNetwork(ServingError):
    """An ONNX file cannot be served with a definition."""


Activation = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class NetworkOutput:
    """One output of a served network; ``dims`` are without the batch, None where they depend on the input.

    ``activation`` is the one that the network ends in, None where it has none that makes scores.
    """

    name: str
    dtype: str
    dims: tuple[int | None, ...]
    activation: Activation | None = None

    @property
    def is_float(self) -> bool:
        """Whether its values are floats, of any width."""
        return self.dtype.startswith("float")


def shapes_text(outputs: Sequence[NetworkOutput]) -> str:
    """Outputs in words, for errors."""
    return ", ".join(
        f"{out.name} {[None, *out.dims]}" + (f" of {out.dtype}" if out.dtype != "float32" else "") for out in outputs
    )


def decided_activation(asked: str, suited: str, output: NetworkOutput) -> str:
    """The activation that is meant: *auto* is *none* where the network ends in one, ``suited`` where it does not.

    Raises ``BadPipeline`` where one is asked for that the network ends in.
    """
    if asked == "auto":
        return "none" if output.activation else suited
    if asked != "none" and output.activation:
        raise BadPipeline(
            f"postprocess.activation is {asked}, and the network's output {output.name!r} comes from "
            f"{output.activation} already: write activation: none, or leave it out"
        )
    return asked


class Made(NamedTuple):
    """A tensor that the nodes at a network's end make, by its name there; ``dims`` as of ``NetworkOutput``."""

    tensor: str
    dtype: str
    dims: tuple[int | None, ...]


class Nodes(Protocol):
    """Appends nodes to a network; every method returns the name of the tensor that they make."""

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        """One node of ONNX with one output."""

    def cast(self, values: str, dtype: str) -> str:
        """Of another datatype, by NumPy's name."""

    def top(self, scores: str, k: int) -> tuple[str, str]:
        """The k best of (batch, n), best first, and their places."""

    def reduced(self, op: Literal["ReduceL2", "ReduceMax", "ReduceMean"], values: str, *, axis: int) -> str:
        """Without this axis."""

    def reshaped(self, values: str, shape: Sequence[int]) -> str:
        """In another shape, with 0 and -1 as Reshape has them."""

    def floats(self, values: npt.ArrayLike) -> str:
        """A constant, float32."""
