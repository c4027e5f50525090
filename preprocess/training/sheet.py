"""A contact sheet of what training sees: pictures as they are served, and beside each the first of its variations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from onestream.preprocess.backends.base import REFERENCE, CpuBackendName, Sample
from onestream.preprocess.backends.reference import picture
from onestream.preprocess.collage import Collage
from onestream.preprocess.compile import compile
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.geometry import Boxes, Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import Planner
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.augmenting.draft import Use
from onestream.preprocess.training.augmenting.mixing import Pictures
from onestream.preprocess.training.base_loader import Bad, Seen, SeenPart
from onestream.preprocess.training.collages import CollageMaker, Mixing
from onestream.preprocess.training.detection.files import Keypoints
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.segmentation.files import IGNORE, Mask
from onestream.preprocess.training.targets import moved_mask, visible_boxes, visible_keypoints
from onestream.preprocess.training.text.files import TextLine
from onestream.preprocess.training.text.maker import LineMaker
from onestream.preprocess.variation import Variation, Vary
from onestream.wire.box_style import color_of, ink_on

_GAP, _WHITE = 4, (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Subject:
    """A picture to be shown: its encoded bytes, its objects as a ``DetectionSample`` has them, and its mask."""

    name: str
    data: bytes
    boxes: Boxes = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    class_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    keypoints: Keypoints | None = None
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """``image`` has a row a picture, or a line. ``drawn`` is, by row, what the columns after the first show."""

    image: Image.Image
    drawn: tuple[tuple[Collage | Variation, ...], ...]


def contact_sheet(
    definition: Definition,
    augmentation: Augmentation,
    subjects: Sequence[Subject],
    *,
    epochs: int = 6,
    seed: int = 0,
    cell: int = 224,
    backend: CpuBackendName = REFERENCE,
    limits: Limits | None = None,
) -> Sheet:
    """Draw a sheet: in each row what serving makes of a picture, and what a loader makes of it in ``epochs`` epochs.

    A picture's number is its sample's index, so that a loader over these pictures draws the same; what is mixed with it
    are the others. ``cell`` is the longest side of a picture on the sheet, in pixels; none is enlarged. Boxes,
    keypoints and masks are drawn where they come to lie, in the colours of their classes. Raises ``BadSample`` naming a
    picture that cannot be used, and ``CannotCompile``, for an operation that cannot vary pictures, too, or the boxes or
    masks that one has.
    """
    targets: dict[Use, bool] = {
        "boxes": any(len(subject.boxes) for subject in subjects),
        "masks": any(subject.mask is not None for subject in subjects),
    }
    for use in (use for use, given in targets.items() if given):
        augmentation.check(use)
    if not any(targets.values()):
        augmentation.check("classes", "boxes")
    limits, pixels = limits or Limits(), definition.pixels()
    shown = ShownPictures(definition, augmentation, subjects, seed)
    served = compile(pixels, backend=backend, limits=limits)
    maker = CollageMaker(
        pixels, shown, Mixing(shown.draw, shown.objects), backend=backend, limits=limits, max_batch_size=epochs
    )
    rows: list[list[Image.Image]] = []
    try:
        for index, subject in enumerate(subjects):
            try:
                located = Planner(definition).mapping(limits.check(subject.data).oriented_hw)
                made: list[tuple[Sample | Bad, Seen]] = [
                    (served.run([subject.data])[0], (SeenPart(index, located),)),
                ]
                for epoch in range(epochs):
                    varied = maker.make([Slot(index)], epoch)
                    made.append((varied.samples[0], varied.seen.get(0, ())))
            except BadImage as error:
                raise BadSample(f"{subject.name}: {error}") from None
            images = _shown([sample for sample, _ in made], subject.name, definition)
            if subject.mask is not None:
                variations = [None, *(collage.parts[0].variation for collage in shown.drawn[index])]
                images = [
                    _painted(image, moved_mask(subject.mask, definition, variation, border=IGNORE))
                    for image, variation in zip(images, variations, strict=True)
                ]
            rows.append(
                [
                    _boxed(image, subjects, seen, augmentation.min_visible, cell)
                    for image, (_, seen) in zip(images, made, strict=True)
                ]
            )
    finally:
        served.close()
        maker.close()
    return Sheet(_pasted(rows), tuple(tuple(shown.drawn[index]) for index in range(len(subjects))))


def line_sheet(
    definition: Definition,
    augmentation: Augmentation,
    lines: Sequence[TextLine],
    *,
    epochs: int = 6,
    seed: int = 0,
    cell: int = 224,
    backend: CpuBackendName = REFERENCE,
    limits: Limits | None = None,
) -> Sheet:
    """The same of lines of text, by a definition that begins with ``region``: a row a line, with the text below each.

    Raises ``BadSample`` naming a line that cannot be used, and ``CannotCompile``, for an operation that cannot vary
    lines, too.
    """
    augmentation.check("lines")
    maker = LineMaker(definition.pixels(), backend=backend, limits=limits or Limits())
    rows: list[list[Image.Image]] = []
    drawn: list[tuple[Variation, ...]] = []
    try:
        for index, line in enumerate(lines):
            variations: list[Variation] = []
            draws = [partial(augmentation.draw, seed=seed, epoch=epoch, index=index) for epoch in range(epochs)]
            varies = [partial(_kept, draw, variations) for draw in draws]
            samples = maker.make(line.path, [line])
            samples += maker.make(line.path, [line] * epochs, varies)
            images = _shown(samples, line.name, definition)
            rows.append([_captioned(_small(image, cell), line.text, cell) for image in images])
            drawn.append(tuple(variations))
    finally:
        maker.close()
    return Sheet(_pasted(rows), tuple(drawn))


def _shown(samples: Sequence[Sample | Bad], name: str, definition: Definition) -> list[Image.Image]:
    """Samples as pictures. Raises ``BadSample`` for a bad one of the picture or line of this name."""
    images = []
    for sample in samples:
        if isinstance(sample, Bad):
            raise BadSample(f"{name}: {sample}")
        images.append(picture(sample, definition.color))
    return images


def _kept(draw: Vary, kept: list[Variation], size_hw: Size) -> Variation:
    kept.append(draw(size_hw))
    return kept[-1]


class ShownPictures:
    """The pictures of a sheet as the dataset of a loader; see ``samples.Pictures``. It keeps what was drawn."""

    classes: tuple[str, ...] = ()

    def __init__(
        self, definition: Definition, augmentation: Augmentation, subjects: Sequence[Subject], seed: int
    ) -> None:
        self.augmentation = augmentation
        self._definition, self._subjects, self._seed = definition, subjects, seed
        self.drawn: list[list[Collage]] = [[] for _ in subjects]

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self._subjects)

    def read(self, index: int) -> bytes:
        """A picture's bytes."""
        return self._subjects[index].data

    def name(self, index: int) -> str:
        """A picture's name."""
        return self._subjects[index].name

    def objects(self, index: int, _size_hw: Size) -> Boxes:
        """The boxes of a picture's objects."""
        return self._subjects[index].boxes

    def draw(self, epoch: int, index: int, pictures: Pictures) -> Collage:
        """What ``augmentation`` draws, which is kept in ``drawn``."""
        collage = self.augmentation.collage(
            pictures, seed=self._seed, epoch=epoch, index=index, definition=self._definition
        )
        self.drawn[index].append(collage)
        return collage


def _painted(image: Image.Image, mask: Mask) -> Image.Image:
    """A sample half covered by the colours of its classes, where they are known."""
    colors = np.array([color_of(class_id) for class_id in range(IGNORE + 1)], np.uint8)
    whole = image.convert("RGB")
    painted = Image.blend(whole, Image.fromarray(colors[mask]), 0.5)
    return Image.composite(painted, whole, Image.fromarray(np.where(mask == IGNORE, 0, 255).astype(np.uint8)))


def _boxed(image: Image.Image, subjects: Sequence[Subject], seen: Seen, min_visible: float, cell: int) -> Image.Image:
    """A sample no larger than a cell, with the boxes of what is seen of objects, and their keypoints as dots."""
    shown = _small(image, cell)
    scale = np.tile([shown.width / image.width, shown.height / image.height], 2)
    pen, line = ImageDraw.Draw(shown), max(2, cell // 100)
    for part in seen:
        subject = subjects[part.index]
        boxes, kept = visible_boxes(subject.boxes, part.located, min_visible=min_visible)
        placed = (boxes + np.tile(part.corner[::-1], 2)) * scale
        colors = [color_of(class_id) for class_id in subject.class_ids[kept].tolist()]
        for (x0, y0, x1, y1), color in zip(placed.tolist(), colors, strict=True):
            pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=ink_on(color), width=line + 1)
            pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=color, width=line)
        if subject.keypoints is None:
            continue
        for points, color in zip(visible_keypoints(subject.keypoints[kept], part.located), colors, strict=True):
            for x, y in ((points[points[:, 2] > 0, :2] + part.corner[::-1]) * scale[:2]).tolist():
                pen.ellipse((x - line, y - line, x + line, y + line), fill=color, outline=ink_on(color))
    return shown


def _small(image: Image.Image, cell: int) -> Image.Image:
    shown = image.convert("RGB")
    shown.thumbnail((cell, cell))
    return shown


def _captioned(image: Image.Image, text: str, cell: int) -> Image.Image:
    """A picture with a text below it, cut where a cell ends. Pillow's own font lacks what is not Latin."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    font = ImageFont.load_default(max(10, cell // 16))
    # All texts are equally high, whatever their letters.
    height, width = math.ceil(font.getbbox("Äg")[3]) + _GAP, math.ceil(font.getlength(shown))
    captioned = Image.new("RGB", (max(image.width, min(width, cell)), image.height + height), _WHITE)
    captioned.paste(image, (0, 0))
    ImageDraw.Draw(captioned).text((0, image.height), shown, fill=(0, 0, 0), font=font)
    return captioned


def _pasted(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Pictures in rows, in cells for the largest, with white between them, and twice as much behind a row's first."""
    width, height = (max(side) for side in zip(*(image.size for row in rows for image in row), strict=True))
    count = len(rows[0])
    sheet = Image.new("RGB", ((width + _GAP) * count + _GAP, (height + _GAP) * len(rows) - _GAP), _WHITE)
    for down, row in enumerate(rows):
        for across, image in enumerate(row):
            sheet.paste(image, ((width + _GAP) * across + _GAP * (across > 0), (height + _GAP) * down))
    return sheet
