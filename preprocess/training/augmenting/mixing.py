"""The operations that make a canvas of several samples: which others, where they lie, and how much of each is seen.

Who else is seen is drawn from the whole dataset by the sample's own generator, so that a canvas depends on nothing that
happens to be in its batch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from pydantic import AfterValidator, Field

from onestream.preprocess.collage import Layer, Part, cut
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Boxes, Size, Window
from onestream.preprocess.training.augmenting.draft import (
    AugmentationOperation,
    Draft,
    PositiveRange,
    Share,
    Use,
    ordered,
)
from onestream.preprocess.training.targets import visible_boxes
from onestream.preprocess.variation import Variation, variation_mapping

_Alpha = Annotated[float, Field(gt=0)]


class Pictures(Protocol):
    """The pictures of a dataset, as far as a draw needs them."""

    def __len__(self) -> int:
        """Number of pictures."""
        ...

    def size_hw(self, index: int) -> Size | None:
        """(height, width) of an upright picture; None where it cannot be used."""
        ...

    def objects(self, index: int) -> Boxes | None:
        """The boxes of what is to be seen in it, float32 (n, 4)."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """What the collage of a sample is drawn from: the dataset's pictures, and what varies one of them by itself."""

    pictures: Pictures
    sample: int
    random: np.random.Generator
    definition: Definition
    canvas_hw: Size
    vary: Callable[[Size, Boxes | None], Variation]

    def other(self, index: int) -> int:
        """Another picture than ``index``, drawn uniformly; the same one where it is the only."""
        count = len(self.pictures)
        if count == 1:
            return index
        drawn = int(self.random.integers(count - 1))
        return drawn + (drawn >= index)

    def part(self, index: int) -> Part | None:
        """A picture, varied, on the whole canvas; None where it cannot be used."""
        size_hw = self.pictures.size_hw(index)
        if size_hw is None:
            return None
        try:
            return Part(sample=index, variation=self.vary(size_hw, self.pictures.objects(index)))
        except BadImage:
            if index == self.sample:
                raise
            return None

    def size_hw(self, part: Part) -> Size:
        """Of a part's picture."""
        size_hw = self.pictures.size_hw(part.sample)
        assert size_hw is not None
        return size_hw


class MixingOperation(AugmentationOperation):
    """Base of the operations that make a canvas of several samples."""

    mixes: ClassVar[bool] = True

    def _draw(self, draft: Draft) -> None:  # noqa: ARG002 (nothing of one picture alone)
        raise TypeError(f"{type(self).__name__} needs other pictures; draw a collage")


class Mosaic(MixingOperation):
    """Four pictures, each as the operations before make it, with one corner where the four meet.

    That point is drawn uniformly, ``middle`` are the least and the greatest share of width and height; the others are
    drawn uniformly from the dataset. All four are as large as they would be alone, times a factor drawn uniformly from
    ``scale``, and cut where their quarter of the canvas ends. The sample itself lies top left. After A. Bochkovskiy et
    al., *YOLOv4* (2020).
    """

    op: Literal["mosaic"] = "mosaic"
    uses: ClassVar[frozenset[Use]] = frozenset({"boxes"})
    middle: Annotated[tuple[Share, Share], AfterValidator(ordered)] = (0.25, 0.75)
    scale: PositiveRange = (0.5, 1.5)

    def layer(self, index: int, table: Table) -> Layer:
        """The parts that a draw places for a sample."""
        (height, width), random = table.canvas_hw, table.random
        x, y = (round(side * random.uniform(*self.middle)) for side in (width, height))
        scale = random.uniform(*self.scale)
        halves = [((0, y), (y, height - y)), ((0, x), (x, width - x))]
        indices = [index, *(table.other(index) for _ in range(3))]
        parts = []
        for one, (down, across) in zip(indices, product((0, 1), repeat=2), strict=True):
            (top, rows), (left, columns) = halves[0][down], halves[1][across]
            parts.append(self._placed(table, one, Window(top, left, rows, columns), (down, across), scale))
        return Layer(parts=tuple(part for part in parts if part is not None))

    def _placed(self, table: Table, index: int, quarter: Window, side: tuple[int, int], scale: float) -> Part | None:
        """A picture in its quarter of the canvas, the 0 or 1st down and across; None where nothing of it is seen."""
        part = table.part(index)
        if part is None:
            return None
        size_hw = table.size_hw(part)
        whole = np.array([[0, 0, size_hw[1], size_hw[0]]], np.float32)
        located = variation_mapping(table.definition, part.variation, size_hw)
        boxes, _ = visible_boxes(whole, located, min_visible=0)
        if not len(boxes):
            return None
        x0, y0, x1, y1 = boxes[0].tolist()
        top, rows, origin_y = _along(side[0], quarter.top, quarter.height, (y0, y1), scale)
        left, columns, origin_x = _along(side[1], quarter.left, quarter.width, (x0, x1), scale)
        if not rows or not columns:
            return None
        window = Window(top, left, rows, columns)
        seen = cut(part.variation, table.canvas_hw, size_hw, window, origin=(origin_y, origin_x), scale=scale)
        return Part(sample=index, variation=seen, top=top, left=left)


def _along(half: int, first: int, count: int, seen: tuple[float, float], scale: float) -> tuple[int, int, float]:
    """Where a picture lies along one side of the canvas: its first pixel, how many it has, and where its canvas begins.

    ``seen``: from where to where it is seen on its own canvas. It touches the point where the four meet: the end of
    half 0, the start of half 1, which are ``count`` pixels long from ``first``.
    """
    start, end = seen
    kept = min(count, max(1, round((end - start) * scale)))
    if half == 0:
        return first + count - kept, kept, first + count - end * scale
    return first, kept, first - start * scale


class BlendingOperation(MixingOperation):
    """Base of the operations that mix the canvas of a sample with that of another, whatever made them."""

    alpha: _Alpha = 1.0

    @abstractmethod
    def layers(self, own: Layer, other: Layer, table: Table) -> tuple[Layer, ...]:
        """What becomes of two canvases."""

    def _share(self, table: Table) -> float:
        """The sample's own."""
        return float(table.random.beta(self.alpha, self.alpha))


class MixUp(BlendingOperation):
    """The levels of two canvases, added by shares; the sample's own is drawn from Beta(``alpha``, ``alpha``).

    H. Zhang et al., *mixup* (2018); the share has the distribution of torchvision's ``v2.MixUp``.
    """

    op: Literal["mixup"] = "mixup"
    uses: ClassVar[frozenset[Use]] = frozenset({"classes", "boxes"})

    def layers(self, own: Layer, other: Layer, table: Table) -> tuple[Layer, ...]:
        """See ``BlendingOperation``."""
        share = self._share(table)
        return Layer(parts=own.parts, share=share), Layer(parts=other.parts, share=1 - share)


class CutMix(BlendingOperation):
    """A rectangle of another canvas on that of the sample, in its place and of its shape.

    The sample's own share is drawn from Beta(``alpha``, ``alpha``), the rectangle's middle uniformly; it is cut at the
    border, and what is left of its area counts. S. Yun et al., *CutMix* (2019), as torchvision's ``v2.CutMix``.
    """

    op: Literal["cutmix"] = "cutmix"
    uses: ClassVar[frozenset[Use]] = frozenset({"classes"})

    def layers(self, own: Layer, other: Layer, table: Table) -> tuple[Layer, ...]:
        """See ``BlendingOperation``."""
        half = 0.5 * math.sqrt(1 - self._share(table))
        (top, bottom), (left, right) = (
            (max(0, middle - int(half * side)), min(side, middle + int(half * side)))
            for side, middle in ((side, int(table.random.integers(side))) for side in table.canvas_hw)
        )
        if top == bottom or left == right:
            return (own,)
        window = Window(top, left, bottom - top, right - left)
        pasted = [
            Part(
                sample=part.sample,
                variation=cut(part.variation, table.canvas_hw, table.size_hw(part), window),
                top=top,
                left=left,
            )
            for part in other.parts
        ]
        return (Layer(parts=(*own.parts, *pasted)),)
