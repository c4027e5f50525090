"""Definitions from torchvision transforms: a ``Compose`` of either generation, a preset, or the weights of a model.

Transforms are known by their class and read by their attributes, so torchvision itself is not needed here.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Step, assemble, filter_named, pair, per_channel, refusing, whole
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Arithmetic, Decode, Filter, Operation


@refusing()
def from_torchvision(transform: Any) -> Definition:
    """The definition of a torchvision evaluation transform, as it treats PIL images.

    A resize after ``ToImage`` or ``PILToTensor`` has the arithmetic *aten*: that of uint8 tensors on a CPU.

    ``transform`` is a ``transforms.Compose`` or ``v2.Compose``, one of the presets that ``weights.transforms()``
    returns, that function, or the weights, such as ``ResNet50_Weights.IMAGENET1K_V2``. Images are decoded to RGB first.

    Raises ``CannotImport`` naming the step that a definition cannot state exactly, and what is nearest.
    """
    if isinstance(transform, enum.Enum) and hasattr(transform, "transforms"):
        transform = transform.transforms
    if isinstance(transform, functools.partial | type):
        transform = transform()
    chain = Chain()
    for step in flat_steps(transform):
        chain.add(step)
    return chain.definition()


def flat_steps(transform: Any) -> Iterator[Any]:
    """The steps of a transform, those inside compositions among them."""
    if class_of(transform) in (("torchvision", "Compose"), ("torch", "Sequential")):
        for step in transform.transforms if hasattr(transform, "transforms") else transform:
            yield from flat_steps(step)
    else:
        yield transform


def class_of(step: Any) -> tuple[str, str]:
    """The library and the name of an object's class; a class derived from a library's own is not the library's."""
    return type(step).__module__.partition(".")[0], type(step).__name__


class Chain:
    """The definition so far, and what an image is by then: PIL or tensor, levels or floats.

    ``tensor_since`` is the name of the step that made it a tensor, None before.
    """

    def __init__(self) -> None:
        self._decode = Decode()
        self.geometry: list[Operation] = []
        self._steps: list[Step] = []
        self.tensor_since: str | None = None
        self._dtype = "uint8"
        self._scale: float | None = None

    def add(self, step: Any) -> None:
        """Take one step. Raises ``CannotImport``."""
        library, name = class_of(step)
        if library == "torchvision" and type(step).__module__.endswith("._presets"):
            return self._preset(step, name)
        take = _TAKE.get(name) if library == "torchvision" or (library == "timm" and name.startswith("Maybe")) else None
        if (library, name) == ("torch", "Identity"):
            return None
        if take is None:
            raise CannotImport(_why_not(step, library, name))
        if self._dtype == "float16" and name not in ("Identity", "ToPureTensor"):
            raise CannotImport(
                f"{name} after a conversion to float16 computes in half precision; make that the last step"
            )
        return take(self, step)

    def definition(self) -> Definition:
        """The definition of the transforms that were read. Raises ``CannotImport`` where that is no network's input."""
        if self.tensor_since is None:
            raise CannotImport("it ends in a PIL image; a network takes a tensor: end it with ToTensor or PILToTensor")
        return assemble([self._decode, *self.geometry], scale=self._scale, steps=self._steps, dtype=self._dtype)

    @property
    def normalizes(self) -> bool:
        """Whether values are by now no levels, and no share of them."""
        return bool(self._steps)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of a definition so far, which ends in a picture where the image is no tensor yet."""
        return (self._decode, *self.geometry) if self.tensor_since is None else self.definition().operations

    def levels_of(self, value: Any, *, where: str) -> tuple[float, ...]:
        """The level, of 0 to 255, for which a value stands by now, in each channel. Raises ``CannotImport``."""
        values = per_channel(value, self._channels, where=where)
        for mean, std in reversed(self._steps):
            values = tuple(m + s * v for m, s, v in zip(mean, std, values, strict=True))
        return tuple((self._scale or 1.0) * value for value in values)

    @property
    def _channels(self) -> int:
        return 1 if self._decode.color == "gray" else 3

    def _preset(self, step: Any, name: str) -> None:
        if name in ("ImageClassification", "SemanticSegmentation"):
            # The size is [None] where the network takes images as they are.
            if step.resize_size and step.resize_size[0] is not None:
                self.resize(step)
            if name == "ImageClassification":
                self.geometry.append(CenterCrop(size=pair(step.crop_size, where="crop_size")))
        elif name != "ObjectDetection":
            raise CannotImport(f"{name} works on videos or pairs of images; definitions are for single images")
        self.to_tensor(step)
        self._to("float32", scale=True)
        if name != "ObjectDetection":
            self.normalize(step)

    def resize(self, step: Any) -> None:
        """Resize: one side or two, of PIL images or of levels in a tensor."""
        if self._dtype != "uint8":
            raise CannotImport(
                "Resize comes after a conversion to floats, which keeps fractions of levels. The nearest exact is "
                "Resize before it, of PIL images or of the uint8 tensor that ToImage or PILToTensor makes"
            )
        if self.tensor_since is not None and ".v2." not in type(step).__module__:
            raise CannotImport(
                f"Resize of torchvision.transforms comes after {self.tensor_since} and so makes floats of a tensor. "
                f"Exact are that of torchvision.transforms.v2, and Resize before {self.tensor_since}"
            )
        if self.geometry:
            before = type(self.geometry[-1]).__name__
            raise CannotImport(
                f"Resize comes after {before}; served images are resized once, first. Make it one Resize"
            )
        if step.antialias is False:
            raise CannotImport(
                "Resize has antialias=False, which tensors follow and PIL images ignore. The nearest exact is "
                "antialias=True"
            )
        filter, arithmetic = self.resampling(step, where="the interpolation of Resize")
        size, longest = getattr(step, "size", None), getattr(step, "max_size", None)
        size = getattr(step, "resize_size", size)
        if size is None:
            size = whole(longest, where="max_size of Resize")
            self.geometry.append(Resize(mode="longer", size=size, filter=filter, arithmetic=arithmetic))
        elif isinstance(size, int) or len(size) == 1:
            side = whole(size if isinstance(size, int) else size[0], where="size of Resize")
            most = None if longest is None else whole(longest, where="max_size of Resize")
            self.geometry.append(Resize(mode="shorter", size=side, max_size=most, filter=filter, arithmetic=arithmetic))
        else:
            exact = pair(size, where="size of Resize")
            self.geometry.append(Resize(mode="exact", size=exact, filter=filter, arithmetic=arithmetic))

    def resampling(self, step: Any, *, where: str) -> tuple[Filter, Arithmetic]:
        """The filter of a step, and the arithmetic of what it resizes. Raises ``CannotImport``."""
        mode = getattr(step.interpolation, "value", step.interpolation)
        if self.tensor_since is not None:
            return filter_named(mode, where=where), "aten"
        # PIL has one kind of nearest.
        return filter_named("nearest" if mode == "nearest-exact" else mode, where=where), "pil"

    def center_crop(self, step: Any) -> None:
        """CenterCrop, of a PIL image or of levels in a tensor."""
        if self._steps:
            raise CannotImport("CenterCrop comes after Normalize and pads with its zeros. Put it before Normalize")
        self.geometry.append(CenterCrop(size=pair(step.size, where="size of CenterCrop")))

    def gray(self, step: Any) -> None:
        """Grayscale to one channel, which is how the image is decoded."""
        if self.geometry or self.tensor_since is not None or step.num_output_channels != 1:
            raise CannotImport(
                f"Grayscale(num_output_channels={step.num_output_channels}) is exact only with 1 channel and as the "
                "first step, before any resize"
            )
        self._decode = Decode(color="gray")

    def rgb(self, _step: Any) -> None:
        """RGB, which decoded images are; gray ones would become three equal channels."""
        if self._decode.color == "gray":
            raise CannotImport("RGB after Grayscale makes three equal channels; a definition has one gray channel")

    def to_tensor(self, step: Any) -> None:
        """PIL to a tensor of levels; what is a tensor stays one."""
        self.tensor_since = self.tensor_since or type(step).__name__

    def scaled_tensor(self, step: Any) -> None:
        """PIL to a tensor of 0 to 1."""
        self.to_tensor(step)
        self._to("float32", scale=True)

    def dtype(self, step: Any) -> None:
        """ToDtype and ConvertImageDtype."""
        if self.tensor_since is None:
            raise CannotImport(f"{type(step).__name__} comes before the image is a tensor; put PILToTensor before it")
        self._to(str(step.dtype).removeprefix("torch."), scale=getattr(step, "scale", True))

    def _to(self, dtype: str, *, scale: bool) -> None:
        if dtype not in ("uint8", "float16", "float32"):
            raise CannotImport(f"a conversion to {dtype}; definitions compute in float32 and give it, float16 or uint8")
        if dtype == "uint8" and self._dtype != "uint8":
            raise CannotImport("a conversion of floats back to uint8, which a definition has not")
        if dtype == "float16" and self._dtype == "uint8" and scale:
            raise CannotImport("levels scaled in float16; convert to float32 first and to float16 last")
        if self._dtype == "uint8" and dtype == "float32" and scale:
            self._scale = 255.0
        self._dtype = dtype

    def normalize(self, step: Any) -> None:
        """Normalize, of floats."""
        if self._dtype == "uint8":
            raise CannotImport(
                "Normalize comes before floats are made of the levels; put ToDtype or ToTensor before it"
            )
        mean, std = (per_channel(_numbers(value), self._channels, where="Normalize") for value in (step.mean, step.std))
        self._steps.append((mean, std))

    def nothing(self, _step: Any) -> None:
        """A step that changes no value."""


_TAKE: dict[str, Callable[[Chain, Any], None]] = {
    "Resize": Chain.resize,
    "CenterCrop": Chain.center_crop,
    "Grayscale": Chain.gray,
    "RGB": Chain.rgb,
    "PILToTensor": Chain.to_tensor,
    "ToImage": Chain.to_tensor,
    "ToImageTensor": Chain.to_tensor,
    "ToTensor": Chain.scaled_tensor,
    "MaybeToTensor": Chain.scaled_tensor,
    "MaybePILToTensor": Chain.to_tensor,
    "ToDtype": Chain.dtype,
    "ConvertImageDtype": Chain.dtype,
    "Normalize": Chain.normalize,
    "Identity": Chain.nothing,
    "ToPureTensor": Chain.nothing,
}
"""How torchvision's classes of these names are read, in both generations."""


def _numbers(values: Any) -> Any:
    """The numbers of a float32 tensor, which timm's Normalize holds, in the fewest digits that mean the same."""
    if str(getattr(values, "dtype", "")) != "torch.float32":
        return values
    return [float(str(np.float32(value))) for value in values.flatten().tolist()]


def is_random(name: str) -> bool:
    """Whether torchvision's class of this name draws at random."""
    return "Random" in name or "Aug" in name or name in _RANDOM


def _why_not(step: Any, library: str, name: str) -> str:
    if library == "torchvision" and is_random(name):
        return (
            f"{name} is random, for training: import it with --augmentation. The nearest exact is the transform of the "
            "evaluation"
        )
    if library == "torchvision" and name == "Pad":
        return "Pad adds a border of fixed width. The nearest exact is pad or letterbox, which fill up to a size"
    if library == "torchvision" and name != "Lambda":
        return f"{name} has no operation in a definition that equals it; known are {', '.join(_TAKE)}"
    what = getattr(step, "__qualname__", None) or f"{type(step).__module__}.{name}"
    return (
        f"{what} is code of its own, which cannot be looked into. Where it only converts to RGB leave it out: images "
        "are decoded to RGB first. Where it only flips the channels leave it out, and write decode with color bgr"
    )


_RANDOM = ("ColorJitter", "AugMix", "GaussianNoise", "MixUp", "CutMix", "ScaleJitter", "ElasticTransform", "JPEG")
