"""What runs the stages of a cascade on a device: what makes their samples, and their networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess import BadImage, Definition, FromPicture, Limits, compile_from_picture
from onestream.preprocess.backends.base import ON_CPU
from onestream.preprocess.geometry import Quads
from onestream.serving.errors import NetworkFailed
from onestream.serving.models import deadline
from onestream.serving.models.deadline import Caller
from onestream.wire.tensor_names import PIXELS

if TYPE_CHECKING:
    from onestream.postprocess.kinds import Tensors
    from onestream.serving.engine import CpuEngine

Pixels = npt.NDArray[np.uint8]


class _Array(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


P = TypeVar("P", bound=_Array)
"""Pixels, uint8 (height, width, channels), on the device: a NumPy array, or a GPU's."""

Samples = Callable[[Sequence[P], Sequence[Quads] | None], list[P | BadImage]]
"""Takes decoded pictures, upright, (height, width, 3) RGB, and gives the sample of each; or with the quads of each
picture the samples of all of these, in order. A ``BadImage`` is where the definition cannot be applied."""


class Networks(ABC, Generic[P]):
    """What runs the network of a stage."""

    @abstractmethod
    def run(self, stage: str, samples: Sequence[P], callers: Sequence[Caller]) -> Sequence[Tensors | NetworkFailed]:
        """The outputs for each sample, of any shape, with a batch dimension of 1, or why this one has none.

        ``callers`` wait for the answers to the samples' pictures. Raises ``NetworkFailed`` where no sample has outputs,
        and ``NobodyWaits``.
        """

    def close(self) -> None:
        """Release what is held."""


class OwnNetworks(Networks[Pixels]):
    """Networks in this process, by their stages."""

    def __init__(self, engines: Mapping[str, CpuEngine]) -> None:
        self._engines = engines

    def run(self, stage: str, samples: Sequence[Pixels], callers: Sequence[Caller]) -> list[Tensors]:  # noqa: ARG002 (no request)
        """See ``Networks.run``. Batches of regions do not pay on a CPU: one region's activations fit the cache."""
        return [self._run(stage, sample) for sample in samples]

    def _run(self, stage: str, sample: Pixels) -> Tensors:
        # A page of long lines takes longer than any batch of single pictures.
        deadline.extend()
        try:
            return self._engines[stage].run({PIXELS: sample[None]})
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise NetworkFailed(f"the network of stage {stage} failed: {type(error).__name__}") from None


def samples_on_cpu(definition: Definition, limits: Limits) -> Samples[Pixels]:
    """What makes the samples of a stage's definition on the CPU, for one thread."""
    return samples_by(compile_from_picture(definition.pixels(), backend=ON_CPU, limits=limits))


def samples_by(from_picture: FromPicture) -> Samples[Pixels]:
    """What makes samples with a compiled definition, picture by picture."""

    def samples(pictures: Sequence[Pixels], quads: Sequence[Quads] | None) -> list[Pixels | BadImage]:
        if quads is None:
            return [_of_whole(from_picture, picture) for picture in pictures]
        of_each = (from_picture.run(picture, some) for picture, some in zip(pictures, quads, strict=True))
        return [sample for some in of_each for sample in some]

    return samples


def _of_whole(from_picture: FromPicture, picture: Pixels) -> Pixels | BadImage:
    try:
        return from_picture.run(picture)
    except BadImage as error:
        return error.as_result()
