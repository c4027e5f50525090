"""Augmentations from transforms for training: torchvision's of either generation, and timm's, which are made of them.

Steps are known by their class and read by their attributes. One is imported where what it draws has the same
distribution, on PIL images, and refused by name otherwise. The steps that draw nothing say what the definition of the
pipeline must be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onestream.preprocess.errors import CannotImport
from onestream.preprocess.geometry import Size
from onestream.preprocess.interop.common import pair, refusing
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.interop.torchvision_transforms import class_of, flat_steps, is_random
from onestream.preprocess.interop.training_order import TrainingOrder
from onestream.preprocess.operations import Filter, Operation
from onestream.preprocess.training.augmentation import Augmentation

_MOST_DISTORTION = 0.5
"""Of perspectives that are left out in no more than 3 draws of a million; of 0.6 they are in 1 of 100."""
_HORIZON = (
    "Where {name}, with what else moves the picture, would show the transform's horizon or come near it, it is left "
    "out: by itself in 3 draws of a million."
)
_ROUNDED = "{name} fills with the levels {exact}; here they are whole: {rounded}."
_SMALL_PICTURES = "A picture that is smaller than its RandomCrop, which torchvision refuses, lies within it."
_PREFETCHER = (
    "timm's loader normalizes and erases after MaybePILToTensor, which cannot be seen here: import the options of "
    "create_transform instead."
)
_LEFT_OUT = "{name} is left out: loaders cut boxes, and drop those of which less than min_visible is seen."
_WHOLE_LEVEL = 1e-3
"""Of a level; torch's numbers are float32."""


@dataclass(frozen=True)
class ImportedAugmentation:
    """An augmentation, where it is from, and what its user should know of it, in sentences.

    With a pipeline whose definition has ``operations``, as far as the source states them, a loader draws what the
    source draws. ``size_hw``: the (height, width) in which that definition must end, None where ``operations`` say it;
    ``filter``: how it must resize, None where nothing is resized or ``operations`` say it.
    """

    augmentation: Augmentation
    origin: str
    operations: tuple[Operation, ...]
    size_hw: Size | None = None
    filter: Filter | None = None
    notes: tuple[str, ...] = ()


@refusing()
def augmentation_from_torchvision(transform: Any, *, origin: str = "a transform") -> ImportedAugmentation:
    """The augmentation of a torchvision transform for training, as it treats PIL images.

    ``transform`` is a ``transforms.Compose`` or ``v2.Compose``, one transform, or what ``timm.data.create_transform``
    returns. Raises ``CannotImport`` naming the step whose draw would differ, why, and what is nearest.
    """
    reader = _Reader()
    for step in flat_steps(transform):
        reader.add(step)
    return reader.imported(origin)


def augmentation_from_timm(options: Mapping[str, Any], *, origin: str = "timm's options") -> ImportedAugmentation:
    """The augmentation of the options of ``timm.data.create_transform``, such as ``{"input_size": 224, "hflip": 0.5}``.

    Raises as ``augmentation_from_torchvision``, and ``BackendMissing`` without timm, which is asked what they mean.
    """
    if options.get("separate"):
        raise CannotImport("separate gives three transforms, for several versions of each picture. Leave it out")
    # With the prefetcher normalizing and erasing come later, and are the same.
    given = {**options, "is_training": True, "use_prefetcher": False}
    try:
        transform = load("timm.data").create_transform(**given)
    except (TypeError, ValueError, KeyError, AssertionError) as error:
        raise CannotImport(f"timm's create_transform refuses its options: {type(error).__name__}: {error}") from None
    return augmentation_from_torchvision(transform, origin=origin)


class _Reader:
    """Reads one step after the other. All methods raise ``CannotImport``."""

    def __init__(self) -> None:
        self._order = TrainingOrder()
        self._jitter: Any = None

    def add(self, step: Any, probability: float = 1.0) -> None:
        """Take one step, which happens with a probability."""
        library, name = class_of(step)
        if self._jitter is not None and (library, name) != ("torchvision", "RandomCrop"):
            _refuse_jitter()
        take = _TAKE.get((library, name))
        if take is not None:
            return take(self, step, name, probability)
        if library in ("torchvision", "timm") and name in _REFUSED:
            raise CannotImport(f"{name} {_REFUSED[name]}")
        if library == "torchvision" and is_random(name):
            known = ", ".join(known for _, known in _TAKE)
            raise CannotImport(f"{name} has no operation in an augmentation that draws the same; known are {known}")
        if (library, name) == ("timm", "MaybePILToTensor"):
            self._order.note(_PREFETCHER)
        return self._order.state(step, name, probability)

    def imported(self, origin: str) -> ImportedAugmentation:
        """The augmentation of the steps that were read."""
        if self._jitter is not None:
            _refuse_jitter()
        order = self._order
        stated = None if order.fixed.geometry else order.cut_to
        return ImportedAugmentation(
            order.augmentation(),
            origin,
            order.fixed.operations,
            stated if order.canvas is None else order.canvas[1],
            order.filter,
            tuple(order.notes),
        )

    def apply(self, step: Any, name: str, probability: float) -> None:
        """RandomApply, of one transform."""
        inside = [one for transform in step.transforms for one in flat_steps(transform)]
        if len(inside) != 1 and probability * step.p != 1:
            raise CannotImport(
                f"{name} makes {len(inside)} transforms happen together or not at all; here each happens by itself. "
                f"The nearest is {name} around each of them"
            )
        for one in inside:
            self.add(one, probability * step.p)

    def box(self, step: Any, name: str, probability: float) -> None:
        """RandomResizedCrop, and timm's of a longer name."""
        self._order.cut(name, probability)
        size = pair(step.size, where=f"size of {name}")
        self._order.fill_canvas(step, name, size, {"op": "box", "area": tuple(step.scale), "ratio": tuple(step.ratio)})

    def crop(self, step: Any, name: str, probability: float) -> None:
        """RandomCrop; after ScaleJitter it is the second half of one operation."""
        order = self._order
        order.cut(name, probability)
        size = pair(step.size, where=f"size of {name}")
        sides = [step.padding] if isinstance(step.padding, int) else list(step.padding or [0])
        if len(set(sides)) != 1:
            raise CannotImport(f"padding of {name} is {sides}; exact is one number for all sides")
        fills = sides[0] or step.pad_if_needed
        if step.padding_mode != "constant" and fills:
            raise CannotImport(f"padding_mode of {name} is {step.padding_mode!r}; exact is 'constant'")
        if order.canvas is not None and order.canvas[1] != size:
            raise CannotImport(
                f"{name} cuts another size than {order.canvas[0]} before it gives; exact are equal sizes"
            )
        if fills:
            order.fill(name, step.fill)
        if self._jitter is not None:
            return self._jittered(size, sides[0], whole=step.pad_if_needed)
        if not step.pad_if_needed:
            order.note(_SMALL_PICTURES)
        order.cut_to = size
        return order.append(name, {"op": "padded_crop", "padding": sides[0], "size": size})

    def scale_jitter(self, step: Any, name: str, probability: float) -> None:
        """ScaleJitter, whose second half is the RandomCrop after it."""
        self._order.cut(name, probability)
        height, width = pair(step.target_size, where=f"target_size of {name}")
        if height != width:
            raise CannotImport(
                f"target_size of {name} is {height}x{width}, where torchvision fits the picture's height into the "
                "second number. Exact is a square"
            )
        self._jitter = step

    def _jittered(self, size: Size, padding: int, *, whole: bool) -> None:
        jitter, self._jitter = self._jitter, None
        if size != pair(jitter.target_size, where="target_size") or padding or not whole:
            _refuse_jitter()
        operation = {"op": "scale_jitter", "scale": tuple(jitter.scale_range)}
        self._order.fill_canvas(jitter, "ScaleJitter", size, operation)

    def flip(self, step: Any, name: str, probability: float) -> None:
        """Either flip."""
        axis = "horizontal" if name == "RandomHorizontalFlip" else "vertical"
        self._order.append(name, {"op": "flip", "axis": axis, "probability": probability * step.p})

    def rotation(self, step: Any, name: str, probability: float) -> None:
        """RandomRotation."""
        if step.expand:
            raise CannotImport(f"{name} has expand=True, which makes the picture larger by the angle. Exact is False")
        self._order.move(step, name, {"op": "rotation", "degrees": tuple(step.degrees), "probability": probability})

    def affine(self, step: Any, name: str, probability: float) -> None:
        """RandomAffine."""
        settings: dict[str, Any] = {"degrees": tuple(step.degrees)}
        if step.translate is not None:
            settings["translate"] = tuple(step.translate)
        if step.scale is not None:
            settings["scale"] = tuple(step.scale)
        if step.shear is not None:
            settings["shear_x"] = tuple(step.shear[:2])
            settings["shear_y"] = tuple(step.shear[2:]) or (0.0, 0.0)
        self._order.move(step, name, {"op": "affine", **settings, "probability": probability})

    def perspective(self, step: Any, name: str, probability: float) -> None:
        """RandomPerspective."""
        if step.distortion_scale > _MOST_DISTORTION:
            raise CannotImport(
                f"distortion_scale of {name} is {step.distortion_scale:g}, of which draws that come near the "
                f"transform's horizon would be left out. The nearest exact is {_MOST_DISTORTION}"
            )
        self._order.note(_HORIZON.format(name=name))
        operation = {"op": "perspective", "distortion": step.distortion_scale, "whole_pixels": True}
        self._order.move(step, name, {**operation, "probability": probability * step.p})

    def policy(self, step: Any, name: str, probability: float) -> None:
        """RandAugment or TrivialAugmentWide."""
        own: dict[str, Any] = {"op": "trivial_augment"}
        if name == "RandAugment":
            own = {"op": "rand_augment", "count": step.num_ops, "magnitude": step.magnitude}
        operation = {**own, "bins": step.num_magnitude_bins, "probability": probability}
        self._order.move_and_change(step, name, operation)

    def timm_policy(self, step: Any, _name: str, _probability: float) -> None:
        """timm's RandAugment, which is none of torchvision's."""
        first = step.ops[0]
        magnitude = min(30, max(0, round(3 * first.magnitude)))
        noise = f", its strength drawn with a deviation of {first.magnitude_std:g}" if first.magnitude_std else ""
        raise CannotImport(
            f"auto_augment 'rand-…' has acts that no operation has (Invert, SolarizeAdd; none that does nothing), "
            f"each with a probability of {first.prob:g}{noise}, and fills with the mean colour. The nearest is "
            f"torchvision's RandAugment({step.num_layers}, {magnitude}), {{op: rand_augment, count: {step.num_layers}, "
            f"magnitude: {magnitude}}}"
        )

    def color_jitter(self, step: Any, name: str, probability: float) -> None:
        """ColorJitter, whose ranges are 1, or of the hue 0, give or take a value."""
        strengths = {}
        for kind, middle in (("brightness", 1.0), ("contrast", 1.0), ("saturation", 1.0), ("hue", 0.0)):
            low, high = getattr(step, kind) or (middle, middle)
            strength = round(high - middle, 9)
            least = middle - strength if kind == "hue" else max(0.0, middle - strength)
            if not math.isclose(low, least, abs_tol=1e-8):
                raise CannotImport(
                    f"{kind} of {name} is drawn from {low:g} to {high:g}; exact is {middle:g} give or take a value"
                )
            strengths[kind] = strength
        self._order.change(name, {"op": "color_jitter", **strengths, "probability": probability})

    def plain_change(self, step: Any, name: str, probability: float) -> None:
        """What has no setting but its probability."""
        self._order.change(name, {"op": _PLAIN[name], "probability": probability * step.p})

    def posterize(self, step: Any, name: str, probability: float) -> None:
        """RandomPosterize."""
        self._order.change(name, {"op": "posterize", "bits": step.bits, "probability": probability * step.p})

    def solarize(self, step: Any, name: str, probability: float) -> None:
        """RandomSolarize: a threshold between two whole levels parts them as the higher one does."""
        threshold = self._order.fixed.levels_of(step.threshold, where=f"threshold of {name}")[0]
        whole = math.ceil(min(256.0, max(0.0, threshold)))
        self._order.change(name, {"op": "solarize", "threshold": whole, "probability": probability * step.p})

    def sharpness(self, step: Any, name: str, probability: float) -> None:
        """RandomAdjustSharpness, whose factor is constant."""
        factor = (step.sharpness_factor, step.sharpness_factor)
        self._order.change(name, {"op": "sharpness", "factor": factor, "probability": probability * step.p})

    def blur(self, step: Any, name: str, probability: float) -> None:
        """GaussianBlur, whose kernel must reach three standard deviations: here none is cut off."""
        low, high = step.sigma
        kernel = min(pair(step.kernel_size, where=f"kernel_size of {name}"))
        least = 2 * math.ceil(3 * high) + 1
        if kernel < least:
            raise CannotImport(
                f"kernel_size of {name} is {kernel}, which cuts off a Gaussian of sigma {high:g}, so that it blurs "
                f"less. Exact is kernel_size={least} or more"
            )
        self._order.change(name, {"op": "blur", "sigma": (low, high), "probability": probability})

    def noise(self, step: Any, name: str, probability: float) -> None:
        """GaussianNoise, whose standard deviation is constant, as a share of 255 levels."""
        if step.mean or not step.clip:
            raise CannotImport(f"{name} has mean={step.mean} and clip={step.clip}; exact are mean=0 and clip=True")
        sigma = 255.0 * step.sigma
        self._order.change(name, {"op": "noise", "sigma": (sigma, sigma), "probability": probability})

    def jpeg(self, step: Any, name: str, probability: float) -> None:
        """JPEG."""
        self._order.mark(name, {"op": "jpeg", "quality": tuple(step.quality), "probability": probability})

    def erase(self, step: Any, name: str, probability: float) -> None:
        """torchvision's RandomErasing."""
        if step.value is None or isinstance(step.value, str):
            raise CannotImport(f"{name} has value='random', noise of its own. The nearest exact is value=0")
        self._erase(name, step.scale, step.ratio, value=step.value, probability=probability * step.p)

    def targets(self, _step: Any, name: str, _probability: float) -> None:
        """What drops or cuts boxes, and leaves pictures alone."""
        self._order.note(_LEFT_OUT.format(name=name))

    def timm_erase(self, step: Any, name: str, probability: float) -> None:
        """timm's RandomErasing, with 0."""
        if step.mode not in ("const", ""):
            raise CannotImport(f"re_mode is {step.mode!r}, noise of its own. The nearest exact is 'const'")
        if (step.min_count, step.max_count) != (1, 1):
            raise CannotImport(
                f"re_count is {step.max_count}, up to which timm draws how many rectangles share the area. Exact is 1"
            )
        area, ratio = (step.min_area, step.max_area), [round(math.exp(end), 9) for end in step.log_aspect_ratio]
        self._erase(name, area, ratio, value=0, probability=probability * step.probability)

    def _erase(
        self, name: str, area: Sequence[float], ratio: Sequence[float], *, value: Any, probability: float
    ) -> None:
        exact = self._order.fixed.levels_of(value, where=f"value of {name}")
        rounded = tuple(round(level) for level in exact)
        if any(abs(level - whole) > _WHOLE_LEVEL for level, whole in zip(exact, rounded, strict=True)):
            shown = ", ".join(f"{level:.1f}" for level in exact)
            self._order.note(_ROUNDED.format(name=name, exact=shown, rounded=", ".join(map(str, rounded))))
        fill = rounded[0] if len(set(rounded)) == 1 else rounded
        operation = {"op": "erase", "area": tuple(area), "ratio": tuple(ratio), "fill": fill}
        self._order.mark(name, {**operation, "probability": probability})


def _refuse_jitter() -> None:
    raise CannotImport(
        "ScaleJitter gives pictures of any size. Exact is RandomCrop directly after it, with the same size, without "
        "padding and with pad_if_needed=True"
    )


_TAKE: dict[tuple[str, str], Callable[[_Reader, Any, str, float], None]] = {
    ("torchvision", "RandomApply"): _Reader.apply,
    ("torchvision", "RandomResizedCrop"): _Reader.box,
    ("torchvision", "RandomCrop"): _Reader.crop,
    ("torchvision", "ScaleJitter"): _Reader.scale_jitter,
    ("torchvision", "RandomHorizontalFlip"): _Reader.flip,
    ("torchvision", "RandomVerticalFlip"): _Reader.flip,
    ("torchvision", "RandomRotation"): _Reader.rotation,
    ("torchvision", "RandomAffine"): _Reader.affine,
    ("torchvision", "RandomPerspective"): _Reader.perspective,
    ("torchvision", "RandAugment"): _Reader.policy,
    ("torchvision", "TrivialAugmentWide"): _Reader.policy,
    ("torchvision", "ColorJitter"): _Reader.color_jitter,
    ("torchvision", "RandomGrayscale"): _Reader.plain_change,
    ("torchvision", "RandomAutocontrast"): _Reader.plain_change,
    ("torchvision", "RandomEqualize"): _Reader.plain_change,
    ("torchvision", "RandomInvert"): _Reader.plain_change,
    ("torchvision", "RandomPosterize"): _Reader.posterize,
    ("torchvision", "RandomSolarize"): _Reader.solarize,
    ("torchvision", "RandomAdjustSharpness"): _Reader.sharpness,
    ("torchvision", "GaussianBlur"): _Reader.blur,
    ("torchvision", "GaussianNoise"): _Reader.noise,
    ("torchvision", "JPEG"): _Reader.jpeg,
    ("torchvision", "RandomErasing"): _Reader.erase,
    ("torchvision", "ClampBoundingBoxes"): _Reader.targets,
    ("torchvision", "SanitizeBoundingBoxes"): _Reader.targets,
    ("timm", "RandomResizedCropAndInterpolation"): _Reader.box,
    ("timm", "RandomErasing"): _Reader.timm_erase,
    ("timm", "RandAugment"): _Reader.timm_policy,
}
"""How the classes of these libraries and names are read, in both generations."""

_PLAIN = {
    "RandomGrayscale": "grayscale",
    "RandomAutocontrast": "autocontrast",
    "RandomEqualize": "equalize",
    "RandomInvert": "invert",
}

_REFUSED = {
    "RandomChoice": "draws one of several transforms; here each happens by itself. The nearest is TrivialAugmentWide",
    "RandomOrder": "draws an order; here it is that of the list. The nearest is the transforms in one order",
    "AutoAugment": "draws one of 25 published pairs of acts, which no operation has. The nearest is RandAugment",
    "AugMix": "mixes several versions of a picture, which no operation does. The nearest is RandAugment",
    "AugMixAugment": "mixes several versions of a picture, which no operation does. The nearest is RandAugment",
    "RandomIoUCrop": "draws by how much a crop overlaps objects. The nearest is RandomResizedCrop: with objects, a box "
    "keeps min_visible of one of them",
    "RandomZoomOut": "draws how much is put around a picture. The nearest is ScaleJitter, then RandomCrop",
    "RandomShortestSize": "draws among sizes, and a network takes one. The nearest is ScaleJitter, then RandomCrop",
    "RandomResize": "draws among sizes, and a network takes one. The nearest is ScaleJitter, then RandomCrop",
    "ResizeKeepRatio": "draws scale and ratio by other rules (train_crop_mode). The nearest is train_crop_mode='rrc'",
    "RandomPhotometricDistort": "draws each change with a probability of its own, and an order of channels. The "
    "nearest is ColorJitter",
    "RandomChannelPermutation": "draws an order of channels, which no operation does. The nearest is ColorJitter's hue",
    "ElasticTransform": "bends pictures by another distribution. The nearest is {op: warp}",
    "MixUp": "mixes the pictures of a batch, and is no step of one picture's chain. Leave it out here, and add "
    "{op: mixup, alpha: …} to what is imported",
    "CutMix": "mixes the pictures of a batch, and is no step of one picture's chain. Leave it out here, and add "
    "{op: cutmix, alpha: …} to what is imported",
}
"""What is known and has no equal, with what is nearest."""
