"""Definitions from Hugging Face image processors: their ``preprocessor_config.json``.

Processors that resize with Pillow and those that resize tensors give the same sizes and crops and other pixels, which
the arithmetic of the definition's resize says. An object tells which it is; of a config only a type that ends in *Fast*
does, since version 5 of transformers writes the same names for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Step, assemble, filter_named, pair, per_channel, refusing, whole
from onestream.preprocess.interop.huggingface.called import as_called
from onestream.preprocess.interop.huggingface.families import FAMILIES, Family
from onestream.preprocess.interop.huggingface.files import Config, network_beside, read_json
from onestream.preprocess.interop.huggingface.tiles import in_tiles
from onestream.preprocess.moves import CenterCrop, Pad, Resize
from onestream.preprocess.operations import Decode, Filter, Operation

_SUFFIXES = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor", "VideoProcessor")
_TYPES = ("image_processor_type", "feature_extractor_type", "video_processor_type")
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters by number."""

_READ = {
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize",
    "image_mean", "image_std", "default_to_square", *_TYPES,
}  # fmt: skip
_CHANGES_NOTHING = {
    "processor_class", "do_convert_rgb", "do_reduce_labels", "reduce_labels", "disable_grouping", "device",
    "return_tensors", "_valid_processor_keys", "transformers_version", "auto_map", "image_seq_length",
}  # fmt: skip
"""What the pixels of an image in RGB do not depend on."""
_WITHIN = (
    "Within a level of 255 of the image processor, which keeps fractions of a level where a definition rounds to 8 bit."
)


def from_huggingface(config: Config | str | Path | Any) -> Definition:
    """The definition of an image processor.

    ``config`` is its config as a dict, a ``preprocessor_config.json``, the folder that holds one, or the processor
    itself. The resize has the arithmetic *aten* where that is known to resize tensors, and *pil* otherwise. A class
    whose rules are not known here is run, where transformers is installed, and imported if a definition gives the same
    pixels of pictures of noise. Of a processor that resizes fractions of a level they are within a level. Where a
    config names its ``processor_class``, what that passes to its image processor stands in place of the config's.
    Raises ``CannotImport`` naming the field that a definition cannot state exactly, and what is nearest.
    """
    return read_huggingface(config)[0]


@refusing()
def read_huggingface(config: Config | str | Path | Any) -> tuple[Definition, tuple[str, ...]]:
    """The definition of ``from_huggingface``, and in sentences how it differs from the config or the processor."""
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "preprocessor_config.json" if path.is_dir() else path
        config = read_json(path)
        network_beside(path)
    processor = None
    if not isinstance(config, Mapping):
        processor, config = getattr(config, "image_processor", config), config.to_dict()
    config, called = as_called(config)
    name = _name(config)
    on_tensors = name.endswith(("Fast", "VideoProcessor")) if processor is None else _resizes_tensors(processor)
    family = next((FAMILIES[name.removesuffix(end)] for end in _SUFFIXES if name.removesuffix(end) in FAMILIES), None)
    if family is None:
        definition, is_equal = _proven(config, name, processor)
    else:
        _refuse_unread(config, family)
        definition, is_equal = _definition(config, family, on_tensors=on_tensors)
        is_equal = is_equal and not family.fractions
    return definition, called if is_equal else (*called, _WITHIN)


def _proven(config: Config, name: str, processor: Any) -> tuple[Definition, bool]:
    """By the first of the known rules that gives what the processor computes."""
    from onestream.preprocess.interop.huggingface import proof  # runs backends, which few imports need

    known = ", ".join(f"{family}ImageProcessor" for family in FAMILIES)
    processor = proof.installed(name, config) if processor is None else processor
    if processor is None:
        raise CannotImport(
            f"{name} is not among the image processors whose rules are known, and no class of an installed "
            "transformers, which is run to find the definition with the same pixels: install transformers, or name the "
            f"class that makes the same pixels. Known are: {known}"
        )
    tried: dict[Definition, str] = {}
    reasons: dict[str, CannotImport] = {}
    for like, family in FAMILIES.items():
        if family.patches or family.tiling:  # their bounds lie beyond the pictures of the proof
            continue
        try:
            with refusing():
                definition, _ = _definition(processor.to_dict(), family, on_tensors=_resizes_tensors(processor))
        except CannotImport as error:
            reasons[like] = error
        else:
            tried.setdefault(definition, like)
    nearest: tuple[float, str] = (math.inf, "")
    for definition, like in tried.items():
        found = proof.difference(definition, partial(proof.pixels, processor))
        if found <= proof.WITHIN:
            return definition, found <= proof.EQUAL
        nearest = min(nearest, (found, like))
    if not tried:
        raise CannotImport(f"{name}, read as the nearest, ViTImageProcessor: {reasons['ViT']}. Known are: {known}")
    how = f"by up to {nearest[0]:.0f} levels of 255" if nearest[0] < math.inf else "in their shape"
    raise CannotImport(
        f"{name} computes what no definition does that its config could state: the nearest, as "
        f"{nearest[1] or next(iter(tried.values()))}ImageProcessor reads it, differs {how}. Known are: {known}"
    )


def _resizes_tensors(processor: Any) -> bool:
    return getattr(processor, "backend", None) == "torchvision"


def _definition(config: Config, family: Family, *, on_tensors: bool) -> tuple[Definition, bool]:
    """What a config states by the rules of a family, and whether its border is a whole level."""
    # MobileViT's is true where its config says nothing.
    flips = config.get("do_flip_channel_order", "do_flip_channel_order" in family.own)
    operations: list[Operation] = [Decode(color="bgr" if flips else "rgb")]
    if family.tiling and config.get("crop_to_patches", family.tiling != "ratio"):
        definition = assemble(
            operations, scale=_scale(config), steps=_steps(config, family, rescales=True), dtype="float32"
        )
        return in_tiles(definition, config, family.tiling, _filter(config), on_tensors=on_tensors), True
    if config.get("do_resize", True):
        # Without smoothing a definition has Pillow's arithmetic only, in floats.
        on_tensors = (on_tensors or family.on_tensors) and family.antialias
        operations += [_of_tensors(one) if on_tensors else one for one in _resize(config, family)]
    if family.crops and _stated(config, "do_center_crop"):
        operations.append(_crop(config, operations[-1]))
    rescales = config.get("do_rescale", True)
    steps = _steps(config, family, rescales=rescales)
    dtype = "float32" if rescales or steps else "uint8"
    definition = assemble(operations, scale=_scale(config) if rescales else None, steps=steps, dtype=dtype)
    if family.patches is not None:
        return family.patches.ended(definition, config, folded=on_tensors), True
    return (
        _padded(definition, config["pad_size"])
        if config.get("do_pad") and config.get("pad_size")
        else (definition, True)
    )


def _padded(definition: Definition, size: Any) -> tuple[Definition, bool]:
    """With zeros at the bottom and right, after normalize: with the mean colour, before it, rounded to whole levels."""
    fields = dict(size) if isinstance(size, Mapping) else {}
    if set(fields) != {"height", "width"}:
        raise CannotImport(f"pad_size is {size!r}, expected height and width")
    normalize = definition.normalize
    color = (0.0, 0.0, 0.0) if normalize is None else tuple(mean * normalize.scale for mean in normalize.mean)
    levels = tuple(round(level) for level in color)
    value = levels[0] if len(set(levels)) == 1 else levels
    height_width = pair((fields["height"], fields["width"]), where="pad_size")
    pad = Pad.model_validate({"size": height_width, "value": value, "align": "top_left"})
    first = 1 + len(definition.geometry)
    chain = definition.operations
    padded = Definition(operations=(*chain[:first], pad, *chain[first:]))
    return padded, all(abs(level - whole) < 0.001 for level, whole in zip(color, levels, strict=True))


def _name(config: Config) -> str:
    """The name of its class, which is transformers' own."""
    names = [config[key] for key in _TYPES if config.get(key)]
    if not names:
        raise CannotImport(
            "the config does not say whose it is: add image_processor_type, such as 'ViTImageProcessor'; processors "
            "of different models read the same fields differently"
        )
    # Code of a processor alone joins the pixels of this image processor with text.
    code = config.get("auto_map") or {}
    if not isinstance(code, Mapping) or code.keys() - {"AutoProcessor"}:
        raise CannotImport(
            f"{names[0]} is code that comes with the model (auto_map), which is not run. The nearest exact is a config "
            "with an image_processor_type of transformers that makes the same pixels, such as 'ViTImageProcessor'"
        )
    return str(names[0])


def _refuse_unread(config: Config, family: Family) -> None:
    """Refuse a field that is set and not read here: it may change the pixels."""
    for key, value in config.items():
        # crop_size may stand in a config that does not crop.
        unread = key not in _READ and key not in _CHANGES_NOTHING and key not in family.own
        if key == "data_format":
            unread = getattr(value, "value", value) != "channels_first"
        if unread and value not in (None, False):
            raise CannotImport(
                f"{key} is {value!r}, which is not known to be exact. The nearest exact is the same without it: leave "
                "it out if it changes nothing"
            )
    if not family.crops and config.get("do_center_crop"):
        raise CannotImport(
            "do_center_crop is true, which this kind of image processor does in version 5 of transformers only. The "
            "nearest exact is do_center_crop false, or a CLIPImageProcessor"
        )


def _stated(config: Config, key: str) -> Any:
    """A field without a safe default."""
    if config.get(key) is None:
        raise CannotImport(f"the config does not state {key}, whose default depends on transformers' version: add it")
    return config[key]


def _resize(config: Config, family: Family) -> list[Operation]:
    filter = _filter({"resample": family.patches.resample, **config} if family.patches else config)
    square = family.square if config.get("default_to_square") is None else config["default_to_square"]
    if family.resize in ("detector", "stretched"):
        return [_of_detector(config, filter, family)]
    if family.resize == "longer":
        return [_longer(_stated(config, "size"), filter)]
    if family.patches is not None:
        return [family.patches.resize(config, filter)]
    short, exact = _size(_stated(config, "size"), square=square)
    crop_pct = config.get("crop_pct", 0.9 if family.resize == "poolformer" else None)
    if family.resize == "convnext":
        if short is None:
            raise CannotImport(f"size is {config['size']!r}; ConvNeXT's has shortest_edge only")
        if short >= 384:
            return [Resize(mode="exact", size=(short, short), filter=filter)]
        larger = int(short / (crop_pct or 224 / 256))
        shorter = Resize(mode="shorter", size=larger, filter=filter)
        return [shorter, CenterCrop(size=(short, short), rounding="truncate")]
    if family.resize == "levit" and short is not None:
        short = int((256 / 224) * short)
    if family.resize == "poolformer" and crop_pct is not None:
        if short is None and exact is not None and exact[0] == exact[1]:
            short = exact[0]
        if short is not None:
            short = int(short / crop_pct)
        elif exact is not None:
            exact = int(exact[0] / crop_pct), int(exact[1] / crop_pct)
    if short is not None:
        return [Resize(mode="shorter", size=short, filter=filter)]
    assert exact is not None
    return [Resize(mode="exact", size=exact, filter=filter)]


def _filter(config: Config) -> Filter:
    resample = _stated(config, "resample")
    known = isinstance(resample, int) and 0 <= resample < len(FILTERS)
    return filter_named(FILTERS[resample] if known else resample, where="resample")


def _of_tensors(operation: Operation) -> Operation:
    """The same as torchvision does it on tensors, for which transformers calls Pillow's nearest *nearest-exact*."""
    if not isinstance(operation, Resize):
        return operation
    filter = "nearest-exact" if operation.filter == "nearest" else operation.filter
    return operation.model_copy(update={"filter": filter, "arithmetic": "aten"})


def _of_detector(config: Config, filter: Filter, family: Family) -> Resize:
    size = _stated(config, "size")
    if not family.antialias and filter != "bilinear":
        raise CannotImport(f"resample is {filter}, without antialiasing; only bilinear, 2, is exact so")
    if isinstance(size, int) and config.get("max_size"):
        size = {"shortest_edge": size, "longest_edge": config["max_size"]}
    fields = {key: value for key, value in size.items() if value is not None} if isinstance(size, Mapping) else {}
    if set(fields) == {"shortest_edge", "longest_edge"} and family.resize == "detector":
        short, long = (whole(fields[key], where=f"size.{key}") for key in ("shortest_edge", "longest_edge"))
        return Resize(
            mode="shorter", size=short, max_size=long, rounding="detr", filter=filter, antialias=family.antialias
        )
    if set(fields) != {"height", "width"}:
        bounds = "shortest_edge with longest_edge, or " if family.resize == "detector" else ""
        raise CannotImport(
            f"size is {dict(size) if isinstance(size, Mapping) else size!r}; exact are {bounds}height and width. The "
            "nearest exact is {'height': 800, 'width': 800}, say, as RT-DETR has it: write it there, export the "
            "network with that size, and measure its accuracy"
        )
    height, width = pair((fields["height"], fields["width"]), where="size")
    return Resize(mode="exact", size=(height, width), filter=filter, antialias=family.antialias)


def _longer(size: Any, filter: Filter) -> Resize:
    if not isinstance(size, Mapping) or {key for key, value in size.items() if value is not None} != {"longest_edge"}:
        raise CannotImport(f"size is {size!r}; exact is longest_edge alone, such as {{'longest_edge': 1024}}")
    side = whole(size["longest_edge"], where="size.longest_edge")
    return Resize(mode="longer", size=side, rounding="half_up", filter=filter)


def _size(size: Any, *, square: bool) -> tuple[int | None, tuple[int, int] | None]:
    """The shorter side, or (height, width)."""
    if isinstance(size, Mapping):
        fields = {key: value for key, value in size.items() if value is not None}
        if set(fields) == {"shortest_edge"}:
            return whole(fields["shortest_edge"], where="size.shortest_edge"), None
        if set(fields) == {"height", "width"}:
            return None, pair((fields["height"], fields["width"]), where="size")
        raise CannotImport(
            f"size is {dict(size)}; exact are shortest_edge alone, or height and width. Two bounds are read of "
            "detectors such as DetrImageProcessor, longest_edge alone of SamImageProcessor"
        )
    if isinstance(size, int) and not square:
        return whole(size, where="size"), None
    return None, pair(size, where="size")


def _crop(config: Config, before: Operation) -> CenterCrop:
    size = _stated(config, "crop_size")
    if isinstance(size, Mapping):
        if not {"height", "width"} <= size.keys():
            raise CannotImport(f"crop_size is {dict(size)}, expected height and width")
        size = (size["height"], size["width"])
    height, width = pair(size, where="crop_size")
    resized = before.size if isinstance(before, Resize) else None
    least = resized if isinstance(resized, tuple) else (resized or 0,) * 2
    if height > least[0] or width > least[1]:
        raise CannotImport(
            f"crop_size {height}x{width} may be larger than the image that it crops, which transformers pads one way "
            "with Pillow and another with torchvision. The nearest exact is a resize to at least the size of the crop"
        )
    return CenterCrop(size=(height, width), rounding="truncate")


def _scale(config: Config) -> float:
    factor = config.get("rescale_factor", 1 / 255)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
        raise CannotImport(f"rescale_factor is {factor!r}, expected a number above 0")
    # A factor such as 0.00392156862745098 stands for a division by 255.
    return round(1 / factor, 9)


def _steps(config: Config, family: Family, *, rescales: bool) -> list[Step]:
    zero, one = (0.0,) * 3, (1.0,) * 3
    steps: list[Step] = [(one, one)] if rescales and config.get("rescale_offset") else []
    if family.normalizes and config.get("do_normalize", True):
        mean = per_channel(_stated(config, "image_mean"), 3, where="image_mean")
        steps.append((mean, per_channel(_stated(config, "image_std"), 3, where="image_std")))
    if config.get("include_top", "include_top" in family.own):
        # EfficientNet divides by the deviation once more.
        steps.append((zero, per_channel(_stated(config, "image_std"), 3, where="image_std")))
    return steps
