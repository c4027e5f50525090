"""Definitions from Hugging Face image processors: their ``preprocessor_config.json``.

What is imported is what the processors of transformers do with Pillow (``backend="pil"``; ``use_fast=False`` before
version 5). Those that resize tensors give the same sizes and crops; their pixels differ by up to a level where the
filter is bilinear, and with others by a few levels in rare pixels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Step, assemble, filter_named, pair, per_channel, refusing, whole
from onestream.preprocess.interop.huggingface_network import check_network
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode, Filter, Operation
from onestream.preprocess.user_files import read_bounded

Config = Mapping[str, Any]


@dataclass(frozen=True)
class _Family:
    """The rules of a kind of image processor that its config does not state.

    ``resize``: how it reads the size. ``square``: whether a size of one number is both sides. ``crops``: whether it has
    a centre crop, so that its config must say if it is done. ``own``: fields that only this kind reads. ``normalizes``:
    whether it subtracts a mean at all. ``antialias``: whether its resize smooths.
    """

    resize: Literal["plain", "convnext", "levit", "poolformer", "detector"] = "plain"
    square: bool = True
    crops: bool = False
    own: tuple[str, ...] = ()
    normalizes: bool = True
    antialias: bool = True


# Annotations change no pixel, and with one size for all pictures do_pad adds nothing.
_OF_BOXES = ("do_pad", "format", "do_convert_annotations", "max_size")
_PLAIN, _CLIP, _DETR = _Family(), _Family(square=False, crops=True), _Family("detector", own=_OF_BOXES)
FAMILIES: dict[str, _Family] = {
    "Bit": _CLIP,
    "Blip": _PLAIN,
    "ChineseCLIP": _CLIP,
    "CLIP": _CLIP,
    "ConditionalDetr": _DETR,
    "ConvNext": _Family("convnext", square=False, own=("crop_pct",)),
    "DeformableDetr": _DETR,
    "DeiT": _Family(crops=True),
    "Detr": _DETR,
    "EfficientNet": _Family(crops=True, own=("rescale_offset", "include_top")),
    "Levit": _Family("levit", square=False, crops=True),
    "MobileNetV1": _CLIP,
    "MobileNetV2": _CLIP,
    "MobileViT": _Family(square=False, crops=True, own=("do_flip_channel_order",), normalizes=False),
    "PoolFormer": _Family("poolformer", square=False, crops=True, own=("crop_pct",)),
    "Pvt": _PLAIN,
    "RfDetr": _Family("detector", own=_OF_BOXES, antialias=False),
    "RTDetr": _DETR,
    "Segformer": _PLAIN,
    "Siglip": _Family(square=False),
    "ViT": _PLAIN,
    "Yolos": _DETR,
}
"""By the beginning of the class's name. DINOv2 uses the image processor of BiT, ResNet that of ConvNeXT, Swin ViT's,
D-FINE RT-DETR's."""

_SUFFIXES = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
_TYPES = ("image_processor_type", "feature_extractor_type")
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters by number."""

_MOST_BYTES = 1 << 24
"""Of a config; that of a network with 100,000 named classes has some megabytes."""
_MOST_DEPTH = 32

_READ = {
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize",
    "image_mean", "image_std", "default_to_square", *_TYPES,
}  # fmt: skip
_CHANGES_NOTHING = {
    "processor_class", "do_convert_rgb", "do_reduce_labels", "reduce_labels", "disable_grouping", "device",
    "return_tensors", "_valid_processor_keys", "transformers_version", "auto_map", "image_seq_length",
}  # fmt: skip
"""What the pixels of an image in RGB do not depend on."""


@refusing()
def from_huggingface(config: Config | str | Path | Any) -> Definition:
    """The definition of an image processor.

    ``config`` is its config as a dict, a ``preprocessor_config.json``, the folder that holds one, or the processor
    itself. Raises ``CannotImport`` naming the field that a definition cannot state exactly, and what is nearest.
    """
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "preprocessor_config.json" if path.is_dir() else path
        config = read_json(path)
        network_beside(path)
    elif not isinstance(config, Mapping):
        config = config.to_dict()
    config = config.get("image_processor", config)
    family = _family(config)
    _refuse_unread(config, family)
    # MobileViT's is true where its config says nothing.
    flips = config.get("do_flip_channel_order", "do_flip_channel_order" in family.own)
    operations: list[Operation] = [Decode(color="bgr" if flips else "rgb")]
    if config.get("do_resize", True):
        operations += _resize(config, family)
    if family.crops and _stated(config, "do_center_crop"):
        operations.append(_crop(config, operations[-1]))
    rescales = config.get("do_rescale", True)
    steps = _steps(config, family, rescales=rescales)
    dtype = "float32" if rescales or steps else "uint8"
    return assemble(operations, scale=_scale(config) if rescales else None, steps=steps, dtype=dtype)


def network_beside(path: Path) -> Config | None:
    """The config of the network beside an image processor's; None where there is none.

    Raises ``CannotImport`` where it cannot be read, or contradicts the image processor.
    """
    beside = path.with_name("config.json")
    if beside == path or not beside.is_file():
        return None
    network = read_json(beside)
    check_network(network)
    return network


def read_json(path: Path) -> Config:
    """The object in a JSON file. Raises ``CannotImport``."""
    try:
        content = json.loads(read_bounded(path, _MOST_BYTES).decode())
        _check_depth(content)
    except OSError as error:
        raise CannotImport(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise CannotImport(f"{path}: it nests more than {_MOST_DEPTH} lists and objects") from None
    except ValueError as error:
        raise CannotImport(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CannotImport(f"{path}: expected fields such as 'image_processor_type', got {type(content).__name__}")
    return content


def _check_depth(value: Any) -> None:
    """Raise ``RecursionError`` for what nests deeply, which Python's own functions do not all survive."""
    values = [value]
    for _ in range(_MOST_DEPTH + 1):
        values = [
            inner
            for outer in values
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not values:
            return
    raise RecursionError


def _family(config: Config) -> _Family:
    names = [config[key] for key in _TYPES if config.get(key)]
    if not names:
        raise CannotImport(
            "the config does not say whose it is: add image_processor_type, such as 'ViTImageProcessor'; processors "
            "of different models read the same fields differently"
        )
    # Code of a processor alone joins the pixels of this image processor with text.
    code = config.get("auto_map") or {}
    if not isinstance(code, Mapping) or code.keys() - {"AutoProcessor"}:
        raise CannotImport(f"{names[0]} is code that comes with the model (auto_map), which cannot be looked into")
    for suffix in _SUFFIXES:
        known = FAMILIES.get(str(names[0]).removesuffix(suffix))
        if known is not None:
            return known
    raise CannotImport(
        f"{names[0]} is not among the image processors that are known to be exact: "
        f"{', '.join(f'{name}ImageProcessor' for name in FAMILIES)}"
    )


def _refuse_unread(config: Config, family: _Family) -> None:
    """Refuse a field that is set and not read here: it may change the pixels."""
    for key, value in config.items():
        # crop_size may stand in a config that does not crop.
        unread = key not in _READ and key not in _CHANGES_NOTHING and key not in family.own
        if key == "data_format":
            unread = getattr(value, "value", value) != "channels_first"
        if unread and value not in (None, False):
            raise CannotImport(
                f"{key} is {value!r}, which is not known to be exact; leave it out if it changes nothing"
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


def _resize(config: Config, family: _Family) -> list[Operation]:
    resample = _stated(config, "resample")
    known = isinstance(resample, int) and 0 <= resample < len(_FILTERS)
    filter = filter_named(_FILTERS[resample] if known else resample, where="resample")
    square = family.square if config.get("default_to_square") is None else config["default_to_square"]
    if family.resize == "detector":
        return [_stretched(_stated(config, "size"), filter, family)]
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


def _stretched(size: Any, filter: Filter, family: _Family) -> Resize:
    fields = {key: value for key, value in size.items() if value is not None} if isinstance(size, Mapping) else {}
    if set(fields) != {"height", "width"}:
        raise CannotImport(
            f"size is {dict(size) if isinstance(size, Mapping) else size!r}, so the network's input depends on the "
            "picture, and a served network has one size. The nearest exact is {'height': 800, 'width': 800}, say, as "
            "RT-DETR has it: write it there, export the network with that size, and measure its accuracy"
        )
    height, width = pair((fields["height"], fields["width"]), where="size")
    if not family.antialias and filter != "bilinear":
        raise CannotImport(f"resample is {filter}, without antialiasing; only bilinear, 2, is exact so")
    return Resize(mode="exact", size=(height, width), filter=filter, antialias=family.antialias)


def _size(size: Any, *, square: bool) -> tuple[int | None, tuple[int, int] | None]:
    """The shorter side, or (height, width)."""
    if isinstance(size, Mapping):
        fields = {key: value for key, value in size.items() if value is not None}
        if set(fields) == {"shortest_edge"}:
            return whole(fields["shortest_edge"], where="size.shortest_edge"), None
        if set(fields) == {"height", "width"}:
            return None, pair((fields["height"], fields["width"]), where="size")
        raise CannotImport(
            f"size is {dict(size)}; exact are shortest_edge alone, or height and width. Two bounds at once are no mode "
            "of resize; the nearest exact is one of them"
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
    least = before.size if isinstance(before, Resize) else (0, 0)
    least = least if isinstance(least, tuple) else (least, least)
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


def _steps(config: Config, family: _Family, *, rescales: bool) -> list[Step]:
    zero, one = (0.0,) * 3, (1.0,) * 3
    steps: list[Step] = [(one, one)] if rescales and config.get("rescale_offset") else []
    if family.normalizes and config.get("do_normalize", True):
        mean = per_channel(_stated(config, "image_mean"), 3, where="image_mean")
        steps.append((mean, per_channel(_stated(config, "image_std"), 3, where="image_std")))
    if config.get("include_top", "include_top" in family.own):
        # EfficientNet divides by the deviation once more.
        steps.append((zero, per_channel(_stated(config, "image_std"), 3, where="image_std")))
    return steps
