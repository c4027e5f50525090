"""A definition as the config of an image processor of transformers."""

from __future__ import annotations

from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile, CannotImport
from onestream.preprocess.interop.common import check_same
from onestream.preprocess.interop.huggingface.config import FILTERS, from_huggingface
from onestream.preprocess.moves import CenterCrop, Pad, Resize
from onestream.preprocess.operations.tiles import Tiles


def to_huggingface(definition: Definition) -> dict[str, Any]:
    """The content of a ``preprocessor_config.json`` with which transformers makes the same pixels.

    A type that ends in *Fast* resizes tensors (``arithmetic: aten``); any other needs ``backend="pil"`` of
    ``AutoImageProcessor.from_pretrained``, before version 5 ``use_fast=False``. Raises ``CannotCompile`` naming what no
    image processor does.
    """
    if isinstance(definition.for_processor, Tiles):
        raise CannotCompile("which image processor of transformers cuts these tiles does not follow from them")
    resize = definition.resize
    normalize = definition.normalize
    config: dict[str, Any] = {
        "image_processor_type": f"{_class(resize, definition)}ImageProcessor",
        "do_resize": resize is not None,
        "do_rescale": definition.output_spec.dtype != "uint8",
        "do_normalize": normalize is not None and (set(normalize.mean), set(normalize.std)) != ({0.0}, {1.0}),
        "do_center_crop": False,
    }
    if normalize is not None:
        config |= {
            "rescale_factor": 1 / normalize.scale,
            "image_mean": [*normalize.mean],
            "image_std": [*normalize.std],
        }
    for operation in definition.geometry:
        if isinstance(operation, Resize):
            config |= _size(operation)
        elif isinstance(operation, CenterCrop):
            config |= {"do_center_crop": True, "crop_size": _sides(operation.size)}
        elif isinstance(operation, Pad):
            config |= {"do_pad": True, "pad_size": _sides(operation.size)}
    if (patches := definition.patches) is not None:
        config |= {
            "patch_size": patches.patch, "temporal_patch_size": patches.temporal, "merge_size": patches.merge,
        }  # fmt: skip
    if resize is not None and resize.arithmetic == "aten":
        config["image_processor_type"] += "Fast"
    try:
        read = from_huggingface(config)
    except CannotImport as error:
        raise CannotCompile(f"no image processor of transformers does this: {error}") from None
    check_same(definition, read, what="image processors of transformers")
    return config


def _class(resize: Resize | None, definition: Definition) -> str:
    """The class that reads such a size."""
    if resize is None or resize.mode == "exact":
        return "DeiT" if any(isinstance(operation, CenterCrop) for operation in definition.geometry) else "ViT"
    if resize.mode == "longer":
        return "Sam"
    if resize.mode == "area" and definition.patches is not None and definition.patches.order == "raster":
        return "PaddleOCRVL"
    if resize.mode == "area":
        return "Qwen2VL" if resize.temporal is None else "Glm4v"
    if resize.mode != "shorter":
        raise CannotCompile(
            f"image processors of transformers have no resize with mode {resize.mode!r}; they have 'exact', 'shorter', "
            "'longer' and 'area'"
        )
    return "CLIP" if resize.max_size is None else "Detr"


def _size(resize: Resize) -> dict[str, Any]:
    size: dict[str, int | None]
    if resize.mode == "area":
        size = {"shortest_edge": resize.min_pixels, "longest_edge": resize.max_pixels}
    elif isinstance(resize.size, tuple):
        size = {**_sides(resize.size)}
    elif resize.mode == "longer":
        size = {"longest_edge": resize.size}
    else:
        size = {"shortest_edge": resize.size} | ({"longest_edge": resize.max_size} if resize.max_size else {})
    # transformers calls nearest-exact of tensors nearest.
    filter = "nearest" if resize.filter == "nearest-exact" else resize.filter
    return {"size": size, "resample": FILTERS.index(filter)}


def _sides(size_hw: tuple[int, int]) -> dict[str, int]:
    return {"height": size_hw[0], "width": size_hw[1]}
