"""Random augmentation whose draws depend on seed, epoch and sample only, not on shard, batch, thread or backend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from onestream.preprocess.collage import Collage, Layer
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotVary
from onestream.preprocess.geometry import Boxes, Size
from onestream.preprocess.operations import Level
from onestream.preprocess.training.augmenting.coloring import (
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    JpegArtefacts,
    LinearColor,
    RandomAutoContrast,
    RandomEqualize,
    RandomErasing,
    RandomInvert,
    RandomPosterize,
    RandomSharpness,
    RandomSolarize,
)
from onestream.preprocess.training.augmenting.draft import AugmentationOperation, Draft, Operation, Share, Use
from onestream.preprocess.training.augmenting.lettering import RandomBackground, RandomWarp
from onestream.preprocess.training.augmenting.mixing import (
    BlendingOperation,
    CutMix,
    MixUp,
    Mosaic,
    Pictures,
    Table,
)
from onestream.preprocess.training.augmenting.moving import (
    Affine,
    Flip,
    PaddedCrop,
    Perspective,
    RandomBox,
    Rotation,
    ScaleJitter,
)
from onestream.preprocess.training.augmenting.policies import RandAugment, TrivialAugment
from onestream.preprocess.training.augmenting.timing import ClipOperation, DropFrames, RandomStart, Speed, TimingDraft
from onestream.preprocess.user_files import read_plain_yaml
from onestream.preprocess.variation import Timing, Variation, canvas_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

AnyAugmentationOperation = Annotated[
    RandomBox
    | Flip
    | Rotation
    | Affine
    | Perspective
    | PaddedCrop
    | ScaleJitter
    | LinearColor
    | ColorJitter
    | Grayscale
    | GaussianBlur
    | GaussianNoise
    | JpegArtefacts
    | RandomErasing
    | RandomPosterize
    | RandomSolarize
    | RandomSharpness
    | RandomAutoContrast
    | RandomEqualize
    | RandomInvert
    | RandAugment
    | TrivialAugment
    | RandomWarp
    | RandomBackground
    | Mosaic
    | MixUp
    | CutMix
    | Speed
    | RandomStart
    | DropFrames,
    Field(discriminator="op"),
]
_COLORS = ("brightness", "contrast", "saturation", "hue")
_TIMES = 9
"""What random numbers are for (``order.SHUFFLE``)."""
_PICTURES: tuple[Use, ...] = ("classes", "boxes", "masks", "lines")


class Short(TypedDict, total=False):
    """What ``Augmentation`` takes in place of operations; see there."""

    area: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    brightness: float
    contrast: float
    saturation: float
    hue: float


class Augmentation(BaseModel):
    """Random variation of images in training: operations, which draw one after the other.

    What they draw makes one transform from the picture to the canvas, which is sampled once, and then changes of
    levels in their order. Where no operation fills the canvas (``RandomBox``, ``ScaleJitter``), the definition's own
    geometry brings the picture there. What the canvas shows beyond the picture has the level ``fill`` in every channel;
    without it that of the definition's pad, or 0. Of lines of text, whose canvas shows the picture around them, the
    picture's border is repeated without it, as it is where a region that does not vary reaches beyond.

    Without operations they are a random box, a horizontal flip and, where a strength is given, a linear change of
    colour: ``area`` and ``ratio`` are those of ``RandomBox``, ``flip`` is the probability of ``Flip``, and
    ``brightness``, ``contrast``, ``saturation``, ``hue`` are the strengths of ``LinearColor``. The defaults are those
    of torchvision's ``RandomResizedCrop`` and a flip.

    ``min_visible``: in pictures with objects a random box keeps at least this share of the area of one of them (ten
    tries, then the whole picture), and an object of which less is seen on the canvas is no target any more. A quarter
    is what is left where both sides are cut in the middle: SSD's crop, torchvision's ``RandomIoUCrop`` and DALI keep an
    object whose centre is in the box.

    ``Mosaic``, ``MixUp`` and ``CutMix`` make a canvas of several samples (``collage``). They come after all that moves
    pixels, one behind the other; what comes before is drawn for each sample by itself, and changes of levels that come
    after are made to the whole. Of ``MixUp`` and ``CutMix`` the first that happens is the only one.

    Raises ``ValidationError`` naming operation and field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    operations: tuple[AnyAugmentationOperation, ...]
    min_visible: Share = 0.25
    fill: Level | None = None

    def __init__(
        self,
        operations: Sequence[Operation | dict[str, Any]] | None = None,
        *,
        min_visible: float = 0.25,
        fill: int | None = None,
        **short: Unpack[Short],
    ) -> None:
        given: dict[str, Any] = dict(short)
        if operations is None:
            operations = _in_full(given)
        # What is left of the short form is refused as unknown.
        super().__init__(operations=operations, min_visible=min_visible, fill=fill, **given)

    @model_validator(mode="after")
    def _mixes_in_order(self) -> Augmentation:
        mixing = [place for place, operation in enumerate(self.operations) if operation.mixes]
        for before, place in pairwise(mixing):
            if place != before + 1:
                raise ValueError(
                    f"{self.operations[before + 1].op} comes between {self.operations[before].op} and "
                    f"{self.operations[place].op}, which must follow each other"
                )
        names = [self.operations[place].op for place in mixing]
        warps = sum(isinstance(operation, RandomWarp) for operation in self.operations)
        if warps > 1 or (warps and {"mosaic", "cutmix"} & set(names)):
            raise ValueError(
                f"warp comes once, without mosaic and cutmix; got {warps}, and {', '.join(names) or 'none'}"
            )
        if "mosaic" in names[1:] or {"mosaic", "cutmix"} <= set(names):
            raise ValueError(f"mosaic comes first, once, and goes with mixup only; got {', '.join(names)}")
        for operation in self.operations[mixing[0] + 1 :] if mixing else ():
            if operation.moves:
                raise ValueError(f"{operation.op} moves pixels, so it must come before {names[0]}")
        return self

    @classmethod
    def from_yaml(cls, text: str) -> Augmentation:
        """Read an augmentation from YAML. Raises ``user_files.BadYaml``, or pydantic's error for a bad field."""
        return cls.model_validate(read_plain_yaml(text))

    def lacking(self, can: Collection[str]) -> tuple[str, ...]:
        """The names of the operations that a backend on a GPU lacks; ``can`` is its ``Backend.varies_on_gpu``.

        One without *transform* has a graph of one box and one linear change of levels: without a box the definition's
        geometry remains, and a box of a box has no whole pixels.
        """
        varying = [one for one in self.operations if isinstance(one, AugmentationOperation)]
        lacking: list[str] = [one.op for one in varying if not set(one.needs) <= set(can)]
        if "transform" not in can:
            operations = [one.op for one in varying]
            lacking += [] if "box" in operations else ["a chain without box"]
            lacking += [f"a second {op}" for op in ("box", "linear_color") if operations.count(op) > 1]
        return tuple(dict.fromkeys(lacking))

    @property
    def mixes(self) -> bool:
        """Whether a canvas may be made of several samples: then ``collage`` draws, and not ``draw``."""
        return any(operation.mixes for operation in self.operations)

    def check(self, *uses: Use) -> Augmentation:
        """Return the augmentation, or raise ``CannotVary`` naming the operations that vary none of ``uses``."""
        varied = {one.op: ", ".join(sorted(one.uses)) for one in self.operations if not one.uses & set(uses)}
        if varied:
            asked = " or ".join(uses)
            raise CannotVary("; ".join(f"{name} cannot vary {asked}, only {other}" for name, other in varied.items()))
        return self

    @property
    def of_frames(self) -> Augmentation:
        """What varies the pictures of a clip: the same without the operations on its times."""
        return self.model_copy(update={"operations": self._of_pictures})

    @property
    def _of_pictures(self) -> tuple[AugmentationOperation, ...]:
        return tuple(one for one in self.operations if isinstance(one, AugmentationOperation))

    def timing(self, frames: int, *, seed: int, epoch: int, index: int, start: float = 0.0) -> Timing:
        """When the frames of sample ``index``, a clip of so many, are taken in ``epoch``.

        ``start`` is the clip's where none is drawn (``Timing``). Its random numbers are others than the pictures',
        whose draws so stay as they are.
        """
        draft = TimingDraft(
            random=generator(seed=seed, epoch=epoch, index=index, purpose=_TIMES), frames=frames, start=start
        )
        for operation in self.operations:
            if isinstance(operation, ClipOperation):
                operation.draw(draft)
        return draft.timing()

    def draw(
        self,
        size_hw: Size,
        *,
        seed: int,
        epoch: int,
        index: int,
        definition: Definition | None = None,
        objects: Boxes | None = None,
    ) -> Variation:
        """The variation of sample ``index`` in ``epoch``, for an image of ``size_hw`` = (height, width) pixels.

        ``definition`` gives the canvas, its colour and the border; without it the canvas has the image's own size, in
        RGB, and without ``fill`` the image's border repeated. ``objects``: the boxes of what is to be seen in the
        image, float32 (n, 4). Raises ``ValueError`` where the definition's output size depends on the image or the
        augmentation mixes samples, ``BadImage`` where it cannot be applied, and ``CannotVary`` where it varies a clip's
        times, which a picture has not.
        """
        self.check(*_PICTURES)
        if self.mixes:
            raise ValueError("the augmentation mixes samples, so it draws a collage")
        random = generator(seed=seed, epoch=epoch, index=index)
        return self._variation(self._of_pictures, random, size_hw, definition, objects)

    def collage(self, pictures: Pictures, *, seed: int, epoch: int, index: int, definition: Definition) -> Collage:
        """What sample ``index`` becomes in ``epoch``, of its own picture and of others, which it draws itself.

        A picture that cannot be used is left out. Raises as ``draw``.
        """
        self.check(*_PICTURES)
        random, operations = generator(seed=seed, epoch=epoch, index=index), self._of_pictures
        first = next((place for place, one in enumerate(operations) if one.mixes), len(operations))
        mixing = [one for one in operations[first:] if one.mixes]
        table = Table(
            pictures,
            index,
            random,
            definition,
            canvas_of(definition),
            lambda size_hw, objects: self._variation(operations[:first], random, size_hw, definition, objects),
        )
        own = _layer(mixing, index, table)
        layers: tuple[Layer, ...] = (own,)
        for operation in mixing:
            if isinstance(operation, BlendingOperation) and operation.happens(random):
                other = _layer(mixing, table.other(index), table)
                layers = operation.layers(own, other, table) if other.parts else layers
                break
        after = Draft(table.canvas_hw, table.canvas_hw, definition.color, random, None, self.min_visible)
        for one in operations[first + len(mixing) :]:
            one.draw(after)
        return Collage(layers=layers, fill=self._fill(definition), changes=tuple(after.changes))

    def _variation(
        self,
        operations: Sequence[AugmentationOperation],
        random: np.random.Generator,
        size_hw: Size,
        definition: Definition | None,
        objects: Boxes | None,
    ) -> Variation:
        draft = Draft(
            source_hw=size_hw,
            canvas_hw=size_hw if definition is None else canvas_of(definition),
            color="rgb" if definition is None else definition.color,
            random=random,
            objects=objects,
            min_visible=self.min_visible,
        )
        for operation in operations:
            operation.draw(draft)
        return draft.variation(definition, self.fill if definition is None else self._fill(definition))

    def _fill(self, definition: Definition) -> int:
        fill = next(iter(reversed(definition.fills)), 0) if self.fill is None else self.fill
        return round(sum(fill) / len(fill)) if isinstance(fill, tuple) else fill


def _layer(mixing: Sequence[AugmentationOperation], index: int, table: Table) -> Layer:
    """The canvas of a sample by itself: a mosaic where one happens, or its own picture; nothing where that is bad."""
    for operation in mixing:
        if isinstance(operation, Mosaic) and operation.happens(table.random):
            return operation.layer(index, table)
    part = table.part(index)
    return Layer(parts=() if part is None else (part,))


def _in_full(short: dict[str, Any]) -> list[dict[str, Any]]:
    """The operations of the short form, whose settings are taken out of it."""
    box: dict[str, Any] = {name: short.pop(name) for name in ("area", "ratio") if name in short}
    flip: dict[str, Any] = {"probability": short.pop("flip")} if "flip" in short else {}
    color: dict[str, Any] = {name: short.pop(name) for name in _COLORS if name in short}
    operations: list[dict[str, Any]] = [{"op": "box", **box}, {"op": "flip", **flip}]
    if any(color.values()):
        operations.append({"op": "linear_color", **color})
    return operations


def generator(*, seed: int, epoch: int, index: int, purpose: int = 0) -> np.random.Generator:
    """Random numbers of one sample in one epoch: a counter-based generator, so no draw depends on another sample's."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, index, epoch, purpose]))
