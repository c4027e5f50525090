"""The backends: what the rest of the code asks of each, and how it is opened. A backend is a class and a row here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from onestream.preprocess.backends.base import (
    ON_CPU,
    REFERENCE,
    BackendName,
    Compiled,
    DecodeOptions,
    Device,
    FromPicture,
    GpuResize,
    Pixels,
    Sample,
)
from onestream.preprocess.changes import CHANGES_ON_GPU, AnyChange
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.limits import Limits
from onestream.wire.install import install_command

if TYPE_CHECKING:
    from onestream.preprocess.cuda.device import DeviceArray, Stream
    from onestream.preprocess.cuda.step_timer import StepTimer

Finish = Callable[[Pixels, Sequence[AnyChange]], Sample]
"""Gives the network's input of a canvas, uint8 (height, width, channels), with changes made to its levels."""


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """A stream, the input of a network on it, uint8 (max_batch_size, height, width, channels), and what times steps."""

    stream: Stream
    output: DeviceArray
    timer: StepTimer


@dataclass(frozen=True, slots=True)
class Opening:
    """How a backend is opened; see ``compile``. ``network`` is what it works for on a GPU, where that is known."""

    device: Device = "cpu"
    max_batch_size: int = 8
    threads: int = 1
    varied: bool = False
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    resize: GpuResize = "exact"
    network: NetworkInput | None = None


class Backend(ABC):
    """A backend. What it cannot execute exactly is refused by name where it is opened (``backends.base``)."""

    name: ClassVar[BackendName]
    title: ClassVar[str]
    devices: ClassVar[tuple[Device, ...]]
    pictures_on: ClassVar[Device]
    """Where it works on decoded pictures and regions of them; ``compile_from_picture`` does that on a CPU."""
    install: ClassVar[str]
    """The command that installs it."""
    distributions: ClassVar[tuple[str, ...]]
    """Names of the packages that hold its library, of which one is installed."""
    module: ClassVar[str]
    """What is imported of these."""
    judged_as: ClassVar[BackendName]
    """Whose entries of the tolerances table bound its difference to the reference."""
    holds_interpreter: ClassVar[bool] = False
    """Whether it runs in Python, so that only processes use several cores."""
    decodes_on_streams: ClassVar[bool] = False
    """Whether it decodes the JPEGs of a batch on several streams (``DecodeOptions.streams``)."""
    varies_on_gpu: ClassVar[tuple[str, ...]] = ()
    """What of a variation it does on a GPU, by names.

    Of geometry a *box* of the picture, resized, a *flip* of it left to right and *upside_down*, any perspective
    *transform*; and changes of levels (``changes``).
    """

    def check_device(self, device: Device) -> None:
        """Raise ``CannotCompile`` unless it runs there."""
        if device not in self.devices:
            allowed = " and ".join(map(repr, self.devices))
            raise CannotCompile(f"the {self.name} backend runs on the device {allowed} only")

    @abstractmethod
    def open(self, definition: Definition, limits: Limits, opening: Opening) -> Compiled:
        """Make a definition executable. Raises as ``compile``."""

    def finish(self, definition: Definition) -> Finish:
        """See ``compile_finish``."""
        from onestream.preprocess.backends.finish import CpuFinish

        return CpuFinish(definition).change

    def from_picture(self, definition: Definition, limits: Limits) -> FromPicture:
        """See ``compile_from_picture``; for a backend whose ``pictures_on`` is the CPU."""
        from onestream.preprocess.backends.finish import CpuFromPicture

        return CpuFromPicture(definition, limits)


class _Reference(Backend):
    """Pillow and NumPy, plain and slow: the specification."""

    name, title, devices, pictures_on = REFERENCE, "Pillow", ("cpu",), "cpu"
    install, distributions, module = install_command("cpu"), ("pillow",), "PIL"
    judged_as, holds_interpreter = ON_CPU, True

    def open(self, definition: Definition, limits: Limits, opening: Opening) -> Compiled:  # noqa: ARG002
        from onestream.preprocess.backends.reference import Reference

        return Reference(definition, limits)

    def finish(self, definition: Definition) -> Finish:
        from onestream.preprocess.backends.reference import changed_sample

        return partial(changed_sample, definition)

    def from_picture(self, definition: Definition, limits: Limits) -> FromPicture:
        from onestream.preprocess.backends.reference import ReferenceFromPicture

        return ReferenceFromPicture(definition, limits)


class _Dali(Backend):
    """DALI: on a CPU it decodes, and compiled loops do the rest; on a GPU it does all of it, on a stream of its own."""

    name, title, devices, pictures_on = "dali", "DALI", ("cpu", "gpu"), "cpu"
    install, module, judged_as = install_command("cpu"), "nvidia.dali.fn", "dali"
    distributions = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
    varies_on_gpu = ("box", "flip", "upside_down", "linear")

    def open(self, definition: Definition, limits: Limits, opening: Opening) -> Compiled:
        from onestream.preprocess.backends.dali import Dali

        return Dali(
            definition,
            limits,
            device=opening.device,
            max_batch_size=opening.max_batch_size,
            threads=opening.threads,
            varied=opening.varied,
            decode=opening.decode,
            gpu_index=opening.network.stream.device.index if opening.network else 0,
        )


class _CvCuda(Backend):
    """nvImageCodec and kernels on one stream, which may be a network's."""

    name, title, devices, pictures_on = "cvcuda", "CV-CUDA", ("gpu",), "gpu"
    install, module, judged_as = install_command("gpu"), "cvcuda", "cvcuda"
    distributions, decodes_on_streams = ("cvcuda-cu12", "cvcuda-cu13"), True
    varies_on_gpu = ("box", "flip", "upside_down", "transform", *CHANGES_ON_GPU)

    def open(self, definition: Definition, limits: Limits, opening: Opening) -> Compiled:
        from onestream.preprocess.backends.cvcuda import CvCuda
        from onestream.preprocess.cuda.device import open_device

        network = opening.network
        return CvCuda(
            definition,
            limits,
            stream=network.stream if network else open_device().stream(),
            max_batch_size=opening.max_batch_size,
            threads=opening.threads,
            decode=opening.decode,
            resize=opening.resize,
            varied=opening.varied,
            output=network.output if network else None,
            timer=network.timer if network else None,
        )


BACKENDS: dict[BackendName, Backend] = {row.name: row for row in (_Reference(), _Dali(), _CvCuda())}


def backend_named(name: BackendName) -> Backend:
    """The row of a backend. Raises ``CannotCompile`` for an unknown one."""
    if name not in BACKENDS:
        raise CannotCompile(f"unknown backend {name!r}; available: {', '.join(BACKENDS)}")
    return BACKENDS[name]
