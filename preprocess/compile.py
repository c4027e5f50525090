"""A definition made executable: the backend by its name, imported only when it is asked for."""

from __future__ import annotations

from onestream.preprocess.backends.base import (
    REFERENCE,
    BackendName,
    Compiled,
    DecodeOptions,
    Device,
    FromPicture,
    GpuResize,
    refuse_patches,
    refuse_regions,
)
from onestream.preprocess.backends.table import BACKENDS, Finish, Opening, backend_named
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.limits import Limits


def compile(
    definition: Definition,
    *,
    backend: BackendName = REFERENCE,
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
    refuse_patches(definition)
    limits = limits or Limits()
    if varied:
        from onestream.preprocess.variation import canvas_of

        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"images cannot vary: {error}") from None
    row = backend_named(backend)
    row.check_device(device)
    return row.open(
        definition,
        limits,
        Opening(
            device=device,
            max_batch_size=max_batch_size,
            threads=threads,
            varied=varied,
            decode=decode or DecodeOptions(),
            resize=resize,
        ),
    )


def compile_finish(definition: Definition, *, backend: BackendName = REFERENCE) -> Finish:
    """Make what follows a definition's geometry executable on canvases: changes of levels, normalize, layout, dtype.

    Raises ``BackendMissing`` naming the command that installs the backend.
    """
    return backend_named(backend).finish(definition)


def compile_from_picture(
    definition: Definition, *, backend: BackendName = REFERENCE, device: Device = "cpu", limits: Limits | None = None
) -> FromPicture:
    """Make what follows a definition's ``decode`` or ``region`` executable on decoded pictures.

    *dali* names the compiled loops that finish what DALI decoded on a CPU; DALI itself takes no part. Raises
    ``CannotCompile`` naming what the backend cannot do exactly, and ``BackendMissing`` naming the command that installs
    it.
    """
    refuse_patches(definition)
    row = backend_named(backend)
    if device != "cpu" or row.pictures_on != "cpu":
        able = " and ".join(repr(other.name) for other in BACKENDS.values() if other.pictures_on == "cpu")
        raise CannotCompile(f"decoded pictures and regions are worked on by {able}, on the device 'cpu'")
    return row.from_picture(definition, limits or Limits())
