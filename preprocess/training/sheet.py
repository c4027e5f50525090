"""A contact sheet of what training sees: pictures as they are served, and beside each the first of its variations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from onestream.preprocess.backends.reference import picture
from onestream.preprocess.compile import compile
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.geometry import Boxes, Size, mapping
from onestream.preprocess.limits import Limits
from onestream.preprocess.projection import Located
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.targets import visible_boxes
from onestream.preprocess.variation import Variation, variation_mapping
from onestream.wire.box_style import color_of, ink_on

_GAP, _WHITE = 4, (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Subject:
    """A picture to be shown: its encoded bytes, and its objects as a ``DetectionSample`` has them."""

    name: str
    data: bytes
    boxes: Boxes = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    class_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Sheet:
    """``image`` has a row a picture. ``variations`` are, row by row, what each of the columns after the first shows."""

    image: Image.Image
    variations: tuple[tuple[Variation, ...], ...]


def contact_sheet(
    definition: Definition,
    augmentation: Augmentation,
    subjects: Sequence[Subject],
    *,
    epochs: int = 6,
    seed: int = 0,
    cell: int = 224,
    backend: Literal["dali", "reference"] = "reference",
    limits: Limits | None = None,
) -> Sheet:
    """Draw a sheet: in each row what serving makes of a picture, and what a loader makes of it in ``epochs`` epochs.

    A picture's number is its sample's index, so that a loader over these pictures draws the same. ``cell`` is the
    longest side of a picture on the sheet, in pixels; none is enlarged. Raises ``BadSample`` naming a picture that
    cannot be used, and ``CannotCompile``.
    """
    limits, pixels = limits or Limits(), definition.pixels()
    served = compile(pixels, backend=backend, limits=limits)
    varied = compile(pixels, backend=backend, limits=limits, varied=True)
    rows: list[list[Image.Image]] = []
    shown: list[tuple[Variation, ...]] = []
    try:
        for index, subject in enumerate(subjects):
            try:
                size_hw = limits.check(subject.data).oriented_hw
                drawn = [
                    augmentation.draw(
                        size_hw, seed=seed, epoch=epoch, index=index, definition=definition, objects=subject.boxes
                    )
                    for epoch in range(epochs)
                ]
                located: list[Located] = [mapping(definition, size_hw)]
                located += [variation_mapping(definition, variation, size_hw) for variation in drawn]
                samples = served.run([subject.data])
                samples += varied.run([subject.data] * epochs, [partial(_given, variation) for variation in drawn])
            except BadImage as error:
                raise BadSample(f"{subject.name}: {error}") from None
            row = []
            for sample, place in zip(samples, located, strict=True):
                if isinstance(sample, BadImage):
                    raise BadSample(f"{subject.name}: {sample}")
                row.append(_boxed(picture(sample, definition.color), subject, place, augmentation.min_visible, cell))
            rows.append(row)
            shown.append(tuple(drawn))
    finally:
        served.close()
        varied.close()
    return Sheet(_pasted(rows), tuple(shown))


def _given(variation: Variation, _size_hw: Size) -> Variation:
    return variation


def _boxed(image: Image.Image, subject: Subject, located: Located, min_visible: float, cell: int) -> Image.Image:
    """A sample no larger than a cell, with the boxes of what is seen of its objects."""
    shown = image.convert("RGB")
    shown.thumbnail((cell, cell))
    boxes, kept = visible_boxes(subject.boxes, located, min_visible=min_visible)
    scale = np.tile([shown.width / image.width, shown.height / image.height], 2)
    pen, line = ImageDraw.Draw(shown), max(2, cell // 100)
    for (x0, y0, x1, y1), class_id in zip((boxes * scale).tolist(), subject.class_ids[kept].tolist(), strict=True):
        color = color_of(class_id)
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=ink_on(color), width=line + 1)
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=color, width=line)
    return shown


def _pasted(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Equally large pictures in rows, with white between them, and twice as much after the first of a row."""
    width, height = rows[0][0].size
    count = len(rows[0])
    sheet = Image.new("RGB", ((width + _GAP) * count + _GAP, (height + _GAP) * len(rows) - _GAP), _WHITE)
    for down, row in enumerate(rows):
        for across, image in enumerate(row):
            sheet.paste(image, ((width + _GAP) * across + _GAP * (across > 0), (height + _GAP) * down))
    return sheet
