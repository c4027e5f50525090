"""The interface of a backend: a compiled definition, run on encoded images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits
from onestream.preprocess.variation import Vary

BackendName = Literal["reference", "dali", "cvcuda"]
Device = Literal["cpu", "gpu"]
GpuResize = Literal["exact", "hq"]
"""*exact* is Pillow's in every bit; *hq* is CV-CUDA's ``hq_resize``, with its filter and its tolerance."""
Sample = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a GPU backend decodes JPEGs.

    ``placement`` *gpu* does all of it there; *hybrid* decodes the entropy on the CPU. ``hw_load`` is the share, 0 to 1,
    that the JPEG hardware of some GPUs (A100, H100) takes over.
    """

    placement: Literal["gpu", "hybrid"] = "gpu"
    hw_load: float = 0.0


class Compiled(ABC):
    """A definition made executable.

    An instance is not thread-safe: give each thread or process its own.
    """

    def __init__(self, definition: Definition, limits: Limits) -> None:
        self.definition = definition
        self.limits = limits

    @abstractmethod
    def run(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]:
        """Process encoded images; the result has the same length and order.

        A good image gives an array as ``definition.output_spec`` says. A bad one gives its ``BadImage``, returned and
        not raised, and does not change the results of the others. ``varies`` gives each image a variation in place of
        the definition's geometry; it needs ``compile(varied=True)``.
        """

    def close(self) -> None:  # noqa: B027 (most backends hold nothing)
        """Release what the backend holds. The instance cannot be used afterwards."""


def network_layout(definition: Definition, pixels: npt.NDArray[np.uint8]) -> Sample:
    """Normalize uint8 HWC pixels and put them in the layout and dtype of ``definition``: the specification in NumPy."""
    sample: Sample = pixels
    normalize = definition.normalize
    if normalize is not None:
        sample = sample.astype(np.float32) / np.float32(normalize.scale)
        sample = (sample - np.asarray(normalize.mean, np.float32)) / np.asarray(normalize.std, np.float32)
    output = definition.network_input
    if output.layout == "NCHW":
        sample = sample.transpose(2, 0, 1)
    return np.ascontiguousarray(sample, dtype=output.dtype)


def level_table(definition: Definition) -> npt.NDArray[np.generic]:
    """The network's value for each of the 256 levels of each channel, (channels, 256), by the same sums."""
    channels = definition.output_spec.channels
    levels = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], channels, axis=2)
    planar = definition.network_input.model_copy(update={"layout": "NCHW"})
    table = network_layout(definition.model_copy(update={"operations": (*definition.operations[:-1], planar)}), levels)
    return np.ascontiguousarray(table[:, 0, :])
