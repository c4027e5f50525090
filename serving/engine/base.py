"""The small interface behind which networks run on a GPU; that of a CPU is in ``cpu.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onestream.preprocess.cuda.device import DeviceArray, Stream


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One input or output of an engine: NumPy dtype name, and dims without the batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]


class DeviceEngine(ABC):
    """A network loaded on a GPU. Thread-safe; each thread opens a session of its own.

    ``inputs`` begin with the pixels, uint8 (height, width, channels); ``max_batch_size`` is the largest batch that a
    session takes.
    """

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    max_batch_size: int

    @abstractmethod
    def open(self, stream: Stream) -> DeviceSession:
        """A session that queues all its work on ``stream``, with its buffers allocated for the largest batch."""

    def close(self) -> None:  # noqa: B027 (some hold nothing)
        """Release the network. Its sessions cannot be used afterwards."""


class DeviceSession(ABC):
    """One thread's use of a :class:`DeviceEngine`: buffers whose addresses never change, and one stream.

    ``inputs`` by name, each (max_batch_size, …), are to be filled on the stream; ``outputs``, likewise, are valid on it
    until the next ``enqueue``.
    """

    inputs: dict[str, DeviceArray]
    outputs: dict[str, DeviceArray]

    @abstractmethod
    def enqueue(self, batch: int) -> None:
        """Queue the network for the first ``batch`` samples of ``inputs`` and return without waiting.

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
