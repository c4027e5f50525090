"""Names what a backend cannot do exactly that resizes one window of an image, once."""

from __future__ import annotations

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode, Region


def refuse_regions(definition: Definition, *, what: str) -> None:
    """Raise ``CannotCompile`` where a definition begins with ``region``, and ``what`` takes whole pictures."""
    if isinstance(definition.source, Region):
        raise CannotCompile(
            f"{what} takes whole pictures; this definition begins with region, which takes regions of a decoded "
            "picture: compile_from_picture executes it"
        )


def refuse_decoding(definition: Definition, *, what: str) -> None:
    """Raise ``CannotCompile`` where ``decode`` asks for what only our own code does, of ``what``."""
    if isinstance(definition.source, Decode) and definition.source.beyond_decoders:
        raise CannotCompile(f"{what} cannot do {_named(definition.source.beyond_decoders)} of decode")


def _named(fields: dict[str, str | int]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in fields.items())


def refuse_inexact(definition: Definition, *, backend: str, own_filter: bool) -> None:
    """Raise ``CannotCompile`` for what such a backend cannot do exactly.

    ``own_filter``: a library resizes on a GPU by a filter of its own, and not by Pillow's arithmetic.
    """
    geometry = definition.geometry
    for operation in geometry:
        if own_filter and isinstance(operation, Resize) and operation.filter != "bilinear":
            raise CannotCompile(
                f"{backend} cannot resize with filter {operation.filter!r} exactly on a GPU; it supports 'bilinear' "
                "there (it keeps fractions between its two passes where Pillow rounds and clips); "
                f"{_USE_EXACT}"
            )
        if own_filter and isinstance(operation, Resize) and not operation.antialias:
            raise CannotCompile(
                f"{backend} is not known to resize without antialias exactly on a GPU; it supports antialias true "
                f"there; {_USE_EXACT}"
            )
    if not definition.resizes_once:
        raise CannotCompile(f"{backend} does one resize, before any crop or pad; this definition has another order")
    if own_filter and not always_visible(definition):
        raise CannotCompile(
            f"{backend} cannot do center_crop after pad or center_crop on a GPU: it may miss the image; {_USE_EXACT}"
        )
    fills = definition.fills
    if len(fills) > 1:
        raise CannotCompile(f"{backend} fills with one value; this definition may fill with {fills}")


def always_visible(definition: Definition) -> bool:
    """Whether some of the image certainly stays on the canvas: one centre crop at most, before any pad.

    A crop of one pixel after a pad may miss an image of one pixel, since the two round the odd pixel differently.
    """
    windows = [operation for operation in definition.geometry if not isinstance(operation, Resize)]
    return not any(isinstance(operation, CenterCrop) for operation in windows[1:])


def refuse_for_graph(definition: Definition) -> None:
    """The same where all of a definition is one graph of DALI's, on either device."""
    refuse_inexact(definition, backend="dali", own_filter=True)


_USE_EXACT = "cvcuda with resize 'exact' can"
