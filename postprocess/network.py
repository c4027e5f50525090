"""What the kinds see of a network: its outputs, the nodes at its end, and the refusal of what does not suit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from onestream.postprocess import BadNetwork, BadPipeline

if TYPE_CHECKING:
    from onestream.preprocess import Definition

CHARACTERS_KEY = "character"
"""The entry of a network's metadata in which PaddleOCR's exports keep their characters, one a line."""
_SLACK = 1e-3


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


def grid_of(outputs: Sequence[NetworkOutput], kind: str, definition: Definition | None = None) -> int:
    """How many values a network has for each cell of its grid, of a kind that takes one output of such.

    Raises ``BadNetwork`` for other outputs, and where the grid does not divide the definition's pictures.
    """
    dims = [dim for dim in outputs[0].dims if dim is not None]
    is_known = len(dims) in (2, 3) and len(dims) == len(outputs[0].dims)
    if len(outputs) != 1 or not is_known or not outputs[0].is_float:
        raise BadNetwork(
            f"{kind} takes one output of floats of a known size, (batch, classes, height, width), or (batch, height, "
            f"width) for one class; got {shapes_text(outputs)}. network_outputs: [NAME] in the pipeline file takes one "
            "of several"
        )
    size_hw = (None, None) if definition is None else definition.output_spec.size_hw
    if definition is not None and any(
        side is None or side % cells for side, cells in zip(size_hw, dims[-2:], strict=True)
    ):
        raise BadNetwork(
            f"{kind} takes an output whose height and width divide those of the network's input, {size_hw[0]} and "
            f"{size_hw[1]}; got {outputs[0].name} of {dims[-2]} and {dims[-1]}"
        )
    return dims[0] if len(dims) == 3 else 1


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


@dataclass(frozen=True, slots=True)
class NetworkClasses:
    """What the build found out of a network's classes: how many there are, the largest number that it gave for the
    package's photos, and their characters, one a line; each None where it does not know.
    """

    count: int | None = None
    largest: int | None = None
    characters: str | None = None


def refuse_values(values: npt.NDArray[Any], bad: npt.NDArray[np.bool_], what: str, reader: str) -> None:
    """Raise ``BadNetwork`` where some of a network's values are bad, with an example."""
    if count := int(np.count_nonzero(bad)):
        example = max(values[bad], key=abs)
        raise BadNetwork(
            f"{count} of {values.size} {what}, such as {example:.6g}: its outputs are not what {reader} reads"
        )


def no_probability(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values are outside 0 to 1, by more than a sum in float16 is off."""
    outside: npt.NDArray[np.bool_] = (values < -_SLACK) | (values > 1 + _SLACK)
    return outside


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
