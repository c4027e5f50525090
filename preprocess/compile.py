"""A definition made executable: the backend by its name, imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onestream.preprocess.backends.base import (
    BackendName,
    Compiled,
    DecodeOptions,
    Device,
    FromPicture,
    GpuResize,
    Pixels,
    Sample,
)
from onestream.preprocess.backends.exactness import refuse_regions
from onestream.preprocess.backends.reference import Reference, changed_sample
from onestream.preprocess.backends.reference_pictures import ReferenceFromPicture
from onestream.preprocess.changes import AnyChange
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.limits import Limits
from onestream.preprocess.variation import canvas_of


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
    resize: GpuResize = "exact",
) -> Compiled:
    """Make a definition executable on a backend.

    ``max_batch_size`` is the largest number of images that the backend processes at once (``run`` accepts more and
    splits them); ``threads`` are CPU threads; ``varied`` prepares for variations (``Compiled.run``), which need an
    output size that does not depend on the image; ``decode`` is read by GPU backends only, ``resize`` by *cvcuda*
    only. Raises ``CannotCompile`` naming what the backend cannot do exactly, and ``BackendMissing`` naming the command
    that installs it.
    """
    refuse_regions(definition, what="compile")
    limits = limits or Limits()
    if varied:
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"images cannot vary: {error}") from None
    if backend == "reference":
        if device != "cpu":
            raise CannotCompile("the reference backend runs on the device 'cpu' only")
        return Reference(definition, limits)
    if backend == "dali":
        from onestream.preprocess.backends.dali import Dali

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
        from onestream.preprocess.backends.cvcuda import CvCuda
        from onestream.preprocess.cuda.device import open_device

        stream = open_device().stream()
        return CvCuda(
            definition,
            limits,
            stream=stream,
            max_batch_size=max_batch_size,
            threads=threads,
            decode=decode or DecodeOptions(),
            resize=resize,
        )
    raise CannotCompile(f"unknown backend {backend!r}; available: reference, dali, cvcuda")


Finish = Callable[[Pixels, Sequence[AnyChange]], Sample]
"""Gives the network's input of a canvas, uint8 (height, width, channels), with changes made to its levels."""


def compile_finish(definition: Definition, *, backend: BackendName = "reference") -> Finish:
    """Make what follows a definition's geometry executable on canvases: changes of levels, normalize, layout, dtype.

    Raises ``BackendMissing`` naming the command that installs the backend.
    """
    if backend == "reference":
        return partial(changed_sample, definition)
    from onestream.preprocess.backends.finish import CpuFinish

    return CpuFinish(definition).change


def compile_from_picture(
    definition: Definition, *, backend: BackendName = "reference", device: Device = "cpu", limits: Limits | None = None
) -> FromPicture:
    """Make what follows a definition's ``decode`` or ``region`` executable on decoded pictures.

    *dali* names the compiled loops that finish what DALI decoded on a CPU; DALI itself takes no part. Raises
    ``CannotCompile`` naming what the backend cannot do exactly, and ``BackendMissing`` naming the command that installs
    it.
    """
    limits = limits or Limits()
    if device != "cpu" or backend == "cvcuda":
        raise CannotCompile("decoded pictures and regions are worked on by 'reference' and 'dali', on the device 'cpu'")
    if backend == "reference":
        return ReferenceFromPicture(definition, limits)
    if backend == "dali":
        from onestream.preprocess.backends.cpu_pictures import CpuFromPicture

        return CpuFromPicture(definition, limits)
    raise CannotCompile(f"unknown backend {backend!r}; available: reference, dali")
