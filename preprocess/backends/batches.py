"""Batches of encoded images: judged and planned from their headers alone, and cut into groups that memory holds."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from onestream.preprocess.backends.reference import decode
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.headers.reader import Encoded, Header
from onestream.preprocess.limits import Limits, admit, needs_pillow, undecodable
from onestream.preprocess.operations import Decode
from onestream.preprocess.plan import Plan, Planner
from onestream.preprocess.variation import Vary

DECODED_PIXELS_AT_ONCE = 128_000_000
"""Decoded pixels of one group on a GPU, 3 bytes each."""
DECODED_PIXELS_AT_ONCE_ON_CPU = 50_000_000
"""Of one group on a CPU: four pictures as large as one may be without being heavy (``limits.HEAVY_WORK``)."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An image whose header passed the limits, its place in the batch, and what is done to it."""

    index: int
    image: Encoded
    header: Header
    plan: Plan

    @property
    def pixels(self) -> int:
        """Height x width of the decoded image."""
        return self.header.height * self.header.width


def plan_batch(
    images: Sequence[Encoded], planner: Planner, limits: Limits, varies: Sequence[Vary] | None = None
) -> tuple[list[Planned], dict[int, BadImage]]:
    """Judge every image by its header: those to run, in order, and by index why the others are refused."""
    planned: list[Planned] = []
    bad: dict[int, BadImage] = {}
    for index, given in enumerate(images):
        try:
            header = admit(given, planner.definition, limits)
            vary = None if varies is None else varies[index]
            plan = planner(header.oriented_hw, vary, is_jpeg=header.format == "JPEG")
            # Pillow decodes what is reduced, and hands over the pixels themselves.
            image, header = (given, header) if plan.factor > 1 else for_library(given, header, planner.definition)
        except BadImage as error:
            bad[index] = error.as_result()
        else:
            planned.append(Planned(index, image, header, plan))
    return planned, bad


def for_library(data: Encoded, header: Header, definition: Definition) -> tuple[Encoded, Header]:
    """The file that the library is to decode: ``data``, or the reference's pixels as they are; ``header`` is admitted.

    These are an uncompressed BMP, upright, so that every library has the same. Raises ``BadImage``.
    """
    source = definition.source
    if not isinstance(source, Decode) or not needs_pillow(header, source):
        return data, header
    image = decode(data, header, source.model_copy(update={"color": "rgb"}))
    file = io.BytesIO()
    try:
        image.save(file, "BMP")
    except MemoryError as error:
        raise undecodable(header, "", error) from None
    pixels = replace(header, format="BMP", height=image.height, width=image.width, orientation=1, kept=())
    return file.getbuffer(), pixels


class HasPixels(Protocol):
    """Something that takes memory while it is worked on."""

    @property
    def pixels(self) -> int:
        """Height x width of what it takes: of an image, decoded."""


_Item = TypeVar("_Item", bound=HasPixels)


def groups(
    items: Sequence[_Item], *, max_items: int, max_pixels: int = DECODED_PIXELS_AT_ONCE
) -> Iterator[list[_Item]]:
    """Consecutive groups of at most ``max_items`` items and ``max_pixels`` pixels.

    A larger item makes a group of its own.
    """
    group: list[_Item] = []
    pixels = 0
    for item in items:
        if group and (len(group) == max_items or pixels + item.pixels > max_pixels):
            yield group
            group, pixels = [], 0
        group.append(item)
        pixels += item.pixels
    if group:
        yield group
