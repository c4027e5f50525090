"""The small interface behind which networks run, on a CPU and on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from onestream.serving.engine.quantization import Quantization, Rounding, read_price
from onestream.serving.engine.stamp import read_stamp

if TYPE_CHECKING:
    from onestream.preprocess import Definition
    from onestream.preprocess.cuda.device import DeviceArray, Stream


class CpuEngine(ABC):
    """A served network (``onestream.serving.graph.onnx_graph``) on a CPU, one image after the other.

    A batch is not run at once: one image's activations fit the cache and eight do not, and so every image gets to the
    last bit the result that it gets alone. Threads may share an engine.

    Attributes:
        output_names: in the network's order.
        metadata: that of the ONNX file.
        computes_in: in which it computes what is float32 in the file.
    """

    output_names: list[str]
    metadata: Mapping[str, str]
    computes_in: Literal["float32", "bf16"] = "float32"

    @abstractmethod
    def __init__(self, model: Path | bytes, *, threads: int) -> None:
        """Load a path or a serialized model. ``threads`` are those of one run; 0 is one per core."""

    @property
    def definition(self) -> Definition | None:
        """The stamped definition; None where the file carries none."""
        return read_stamp(self.metadata, where="the ONNX file")

    @property
    def price(self) -> Quantization | Rounding | None:
        """What int8 or bfloat16 costs and gains; None for a network in float32."""
        return read_price(self.metadata)

    def run(self, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Outputs by name for ``pixels``, uint8 (batch, height, width, channels)."""
        rows = [self.run_one(pixels[i : i + 1]) for i in range(len(pixels))]
        columns = rows[0] if len(rows) == 1 else [np.concatenate(column) for column in zip(*rows, strict=True)]
        return dict(zip(self.output_names, columns, strict=True))

    @abstractmethod
    def run_one(self, pixels: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """The outputs for one image, uint8 (1, height, width, channels), in the order of ``output_names``."""


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One input or output of an engine: NumPy dtype name, and dims without the batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]


class DeviceEngine(ABC):
    """A network loaded on a GPU. Thread-safe; each thread opens a session of its own.

    ``input`` is uint8 (height, width, channels); ``max_batch_size`` is the largest batch that a session takes.
    """

    input: EngineTensor
    outputs: tuple[EngineTensor, ...]
    max_batch_size: int

    @abstractmethod
    def open(self, stream: Stream) -> DeviceSession:
        """A session that queues all its work on ``stream``, with its buffers allocated for the largest batch."""

    def close(self) -> None:  # noqa: B027 (some hold nothing)
        """Release the network. Its sessions cannot be used afterwards."""


class DeviceSession(ABC):
    """One thread's use of a :class:`DeviceEngine`: buffers whose addresses never change, and one stream.

    ``input`` is uint8 (max_batch_size, height, width, channels), to be filled on the stream; ``outputs`` by name,
    each (max_batch_size, …), are valid on the stream until the next ``enqueue``.
    """

    input: DeviceArray
    outputs: dict[str, DeviceArray]

    @abstractmethod
    def enqueue(self, batch: int) -> None:
        """Queue the network for the first ``batch`` samples of ``input`` and return without waiting.

        Raises ``ValueError`` for a batch that is not between 1 and ``max_batch_size``.
        """

    def close(self) -> None:  # noqa: B027 (some hold nothing)
        """Release the buffers."""


class FreeSession(ABC):
    """One thread's use of a network on one stream of a GPU, for pixels of any size that the network takes."""

    @abstractmethod
    def enqueue(self, pixels: DeviceArray) -> dict[str, DeviceArray]:
        """Queue the network for uint8 (batch, height, width, channels) and return its outputs without waiting.

        The outputs are by name, contiguous, and theirs who holds them; they are valid on the stream, and ``pixels``
        must stay until it has passed.
        """

    def close(self) -> None:  # noqa: B027 (some hold nothing)
        """Release the network; the stream must have passed all batches."""
