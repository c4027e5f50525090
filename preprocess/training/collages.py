"""Makes the samples of collages: each part by the compiled definition, as pixels, and then the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from onestream.preprocess.backends.base import BackendName, Device, Pixels, Sample
from onestream.preprocess.collage import Collage, blended
from onestream.preprocess.compile import compile_finish
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.geometry import Boxes, Size
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmenting.mixing import Pictures
from onestream.preprocess.training.base_loader import Bad, Made, Seen, SeenPart, bad_of
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.sources.cache import compile_for
from onestream.preprocess.training.sources.samples import Pictures as Files
from onestream.preprocess.variation import Variation, canvas_of, given, variation_transform

DrawCollage = Callable[[int, int, Pictures], Collage]
"""Draws the collage of an epoch and a sample's index."""
Objects = Callable[[int, Size], Boxes]
"""Gives the boxes of a sample whose picture has this (height, width). Raises ``BadSample`` where they are another's."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """How collages are drawn, and what is to be seen in a picture, where that is known. It crosses processes."""

    draw: DrawCollage
    objects: Objects | None = None


class CollageMaker:
    """Reads the pictures of collages, makes the parts, and mixes them. Not thread-safe.

    A picture that cannot be used is left out of the collages of others; as a sample of its own it is bad.
    """

    def __init__(
        self,
        definition: Definition,
        files: Files,
        mixing: Mixing,
        *,
        backend: BackendName,
        device: Device = "cpu",
        limits: Limits,
        max_batch_size: int,
    ) -> None:
        self._definition, self._files, self._mixing, self._limits = definition, files, mixing, limits
        self._compiled = compile_for(
            files,
            definition.pixels(),
            backend=backend,
            device=device,
            limits=limits,
            max_batch_size=max_batch_size,
            varied=True,
        )
        self._finish = compile_finish(definition, backend=backend)
        self._canvas_hw = canvas_of(definition)

    def make(self, slots: Sequence[Slot], epoch: int) -> Made:
        """The samples of a batch, or why they are bad."""
        drawn = [self._drawn(slot.index, slot.drawn_in(epoch)) for slot in slots]
        images: list[Encoded] = []
        variations: list[Variation] = []
        for one in drawn:
            if not isinstance(one, Bad):
                images += [one.read.image(part.sample) for part in one.collage.parts]
                variations += [part.variation for part in one.collage.parts]
        results = iter(self._compiled.run(images, [partial(given, variation) for variation in variations]))
        made = Made([], {})
        for place, one in enumerate(drawn):
            if isinstance(one, Bad):
                made.samples.append(one)
                continue
            parts = [next(results) for _ in one.collage.parts]
            damaged = {
                part.sample: result
                for part, result in zip(one.collage.parts, parts, strict=True)
                if isinstance(result, BadImage)
            }
            if slots[place].index in damaged:
                made.samples.append(damaged[slots[place].index])
                continue
            collage = one.collage.without(damaged) if damaged else one.collage
            pixels = [result for result in parts if not isinstance(result, BadImage)]
            made.samples.append(self._whole(collage, pixels))
            made.seen[place] = self._seen(collage, one.read)
        return made

    def close(self) -> None:
        """Release the decoder."""
        self._compiled.close()

    def _drawn(self, index: int, epoch: int) -> _Drawn | Bad:
        read = _Read(self._files, self._limits, self._mixing.objects)
        try:
            read.refuse_bad(index)
            return _Drawn(self._mixing.draw(epoch, index, read), read)
        except (OSError, BadSample, BadImage) as error:
            return bad_of(error)

    def _whole(self, collage: Collage, parts: Sequence[Pixels]) -> Sample:
        shape = (*self._canvas_hw, self._definition.output_spec.channels)
        return self._finish(blended(collage, parts, shape), collage.changes)

    def _seen(self, collage: Collage, read: _Read) -> Seen:
        return tuple(
            SeenPart(
                part.sample,
                variation_transform(self._definition, part.variation, read.known_size(part.sample)),
                (part.top, part.left),
                share,
            )
            for part, share in zip(collage.parts, collage.shares(self._canvas_hw), strict=True)
        )


class _Read:
    """The pictures of a collage while it is drawn: each file is read once; see ``mixing.Pictures``."""

    def __init__(self, files: Files, limits: Limits, objects: Objects | None) -> None:
        self._files, self._limits, self._objects = files, limits, objects
        self._images: dict[int, Encoded] = {}
        self._sizes: dict[int, Size | None] = {}
        self._boxes: dict[int, Boxes] = {}

    def __len__(self) -> int:
        return len(self._files)

    def size_hw(self, index: int) -> Size | None:
        if index not in self._sizes:
            try:
                self.refuse_bad(index)
            except (OSError, BadSample, BadImage):
                self._sizes[index] = None
        return self._sizes[index]

    def objects(self, index: int) -> Boxes | None:
        return self._boxes.get(index)

    def refuse_bad(self, index: int) -> None:
        """Read a picture. Raises ``OSError``, ``BadSample`` or ``BadImage`` where it cannot be used."""
        image = self._files.read(index)
        checked = self._limits.checked(image)
        size_hw = checked.header.oriented_hw
        if self._objects is not None:
            self._boxes[index] = self._objects(index, size_hw)
        self._images[index], self._sizes[index] = checked, size_hw

    def image(self, index: int) -> Encoded:
        """A picture that was read."""
        return self._images[index]

    def known_size(self, index: int) -> Size:
        """Of a picture that was read."""
        size_hw = self._sizes[index]
        assert size_hw is not None
        return size_hw


@dataclass(frozen=True, slots=True)
class _Drawn:
    collage: Collage
    read: _Read
