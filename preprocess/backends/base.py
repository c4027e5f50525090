"""What every backend offers: compile a definition, then run it on encoded images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from preprocess.definition import Definition
from preprocess.errors import BadImage, CannotCompile
from preprocess.header import Encoded
from preprocess.limits import Limits
from preprocess.variation import Vary, canvas_of

BackendName = Literal["reference", "dali", "cvcuda"]
Device = Literal["cpu", "gpu"]
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


def compile(
    definition: Definition,
    *,
    backend: BackendName = "reference",
    device: Device = "cpu",
    limits: Limits | None = None,
    max_batch_size: int = 8,
    threads: int = 1,
    varied: bool = False,
    decode: DecodeOptions | None = None,
) -> Compiled:
    """Make a definition executable on a backend.

    ``max_batch_size`` is the largest number of images that the backend processes at once (``run`` accepts more and
    splits them); ``threads`` are CPU threads; ``varied`` prepares for variations (``Compiled.run``), which need an
    output size that does not depend on the image; ``decode`` is read by GPU backends only. Raises ``CannotCompile``
    naming what the backend cannot do exactly, and ``BackendMissing`` naming the command that installs it.
    """
    limits = limits or Limits()
    if varied:
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"images cannot vary: {error}") from None
    if backend == "reference":
        from preprocess.backends.reference import Reference

        if device != "cpu":
            raise CannotCompile("the reference backend runs on the device 'cpu' only")
        return Reference(definition, limits)
    if backend == "dali":
        from preprocess.backends.dali import Dali

        return Dali(
            definition,
            limits,
            device=device,
            max_batch_size=max_batch_size,
            threads=threads,
            varied=varied,
            decode=decode or DecodeOptions(),
        )
    if backend == "cvcuda":
        if device != "gpu":
            raise CannotCompile("the cvcuda backend runs on the device 'gpu' only")
        if varied:
            raise CannotCompile("cvcuda does not vary images; dali does")
        from preprocess.backends.cvcuda import CvCuda
        from preprocess.device import open_device

        stream = open_device().stream()
        return CvCuda(
            definition,
            limits,
            stream=stream,
            max_batch_size=max_batch_size,
            threads=threads,
            decode=decode or DecodeOptions(),
        )
    raise CannotCompile(f"unknown backend {backend!r}; available: reference, dali, cvcuda")


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
