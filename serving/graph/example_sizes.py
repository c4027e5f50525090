"""Sizes that a network's input takes where the definition leaves sides free, to try the network and to warm it up."""

from __future__ import annotations

from collections.abc import Sequence

from onestream.preprocess import BadImage, Definition
from onestream.preprocess.geometry import Size
from onestream.preprocess.plan import Planner
from onestream.serving.errors import BadPipeline

_PHOTOS: tuple[Size, ...] = ((448, 640), (640, 448))
"""Multiples of 64, since many networks halve their sides six times."""
_REGIONS: tuple[Size, ...] = ((32, 160), (64, 480))
_SMALL: tuple[Size, ...] = ((64, 64), (64, 16), (16, 64), (16, 16), (16, 4), (4, 16), (4, 4), (1, 1))


def example_sizes(definition: Definition) -> list[Size]:
    """Heights and widths of the input: one where it is fixed, else those of two usual pictures, or regions.

    Of a small one where the definition refuses these. Raises ``BadPipeline`` as ``small_size``.
    """
    found = _taken(definition, _PHOTOS if definition.region is None else _REGIONS)
    return found or [small_size(definition)]


def small_size(definition: Definition) -> Size:
    """Height and width of the input for a small picture. Raises ``BadPipeline`` where a pad refuses every size."""
    if found := _taken(definition, _SMALL):
        return found[0]
    tried = ", ".join(f"{width}x{height}" for height, width in _SMALL)
    raise BadPipeline(f"preprocess refuses pictures of every size that was tried: {tried}; see its pad")


def _taken(definition: Definition, sizes: Sequence[Size]) -> list[Size]:
    """The different sizes of the input for pictures of these sizes, without those that are refused."""
    height, width = definition.output_spec.size_hw
    if height is not None and width is not None:
        return [(height, width)]
    found: dict[Size, None] = {}
    planner = Planner(definition)
    for size in sizes:
        try:
            found[planner(size).canvas_hw] = None
        except BadImage:
            continue
    return list(found)
