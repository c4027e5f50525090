"""Computes a GPU's work for each image on the host, from headers alone: rectangles, canvases, groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onestream.preprocess.backends.uncompressed import admit_for_library
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.headers.reader import Encoded, Header
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import Placement, free_sizes, place
from onestream.preprocess.variation import Variation, Vary


@dataclass(frozen=True, slots=True)
class Resample:
    """How one decoded image fills its canvas.

    ``source`` is the rectangle that is read, (top, left, bottom, right) in the decoded image's pixels, not rounded;
    the filter may reach beyond it. ``target`` is the rectangle of the canvas that it fills.
    """

    source: tuple[float, float, float, float]
    target: Window
    canvas_hw: Size

    @classmethod
    def of(cls, placement: Placement) -> Resample:
        """From a placement, of which something is visible."""
        window, (top, left) = placement.window, placement.offset
        down, right = (
            source / resized for source, resized in zip(placement.source_hw, placement.resized_hw, strict=True)
        )
        return cls(
            (
                window.top * down,
                window.left * right,
                (window.top + window.height) * down,
                (window.left + window.width) * right,
            ),
            Window(top, left, window.height, window.width),
            placement.canvas_hw,
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """An image whose header passed the limits: its place in the batch, and a placement or a variation."""

    index: int
    image: Encoded
    header: Header
    work: Placement | Variation

    @property
    def pixels(self) -> int:
        """Height x width of the decoded image."""
        height, width = self.header.oriented_hw
        return height * width


def plan_batch(
    images: Sequence[Encoded], definition: Definition, limits: Limits, varies: Sequence[Vary] | None = None
) -> tuple[list[Planned], dict[int, BadImage]]:
    """Judge every image by its header: those to run, in order, and by index why the others are refused."""
    planned: list[Planned] = []
    bad: dict[int, BadImage] = {}
    for index, given in enumerate(images):
        try:
            image, header = admit_for_library(given, definition, limits)
            size_hw = header.oriented_hw
            work = _placement(definition, size_hw, limits) if varies is None else varies[index](size_hw)
        except BadImage as error:
            bad[index] = error.as_result()
        else:
            planned.append(Planned(index, image, header, work))
    return planned, bad


def _placement(definition: Definition, size_hw: Size, limits: Limits) -> Placement:
    for resized_hw in free_sizes(definition, size_hw):
        limits.check_resized(resized_hw)
    return place(definition, size_hw)
