"""A definition as the config of an image processor of transformers."""

from __future__ import annotations

from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile, CannotImport
from onestream.preprocess.interop.common import check_same
from onestream.preprocess.interop.huggingface.config import FILTERS, from_huggingface
from onestream.preprocess.moves import CenterCrop, Pad, Resize
from onestream.preprocess.operations import Filter
from onestream.preprocess.operations.tiles import Tiles


def to_huggingface(definition: Definition) -> dict[str, Any]:
    """The content of a ``preprocessor_config.json`` with which transformers makes the same pixels.

    A type that ends in *Fast* resizes tensors (``arithmetic: aten``); any other needs ``backend="pil"`` of
    ``AutoImageProcessor.from_pretrained``, before version 5 ``use_fast=False``. Raises ``CannotCompile`` naming what no
    image processor does.
    """
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
    if isinstance(tiles := definition.for_processor, Tiles):
        config |= _tiles(tiles, resize)
    if "aten" in {op.arithmetic for op in definition.operations if isinstance(op, Resize | Tiles)}:
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
    return {"size": size, "resample": _resample(resize.filter)}


def _tiles(tiles: Tiles, resize: Resize | None) -> dict[str, Any]:
    """The fields of the class that cuts such tiles, in place of those without."""
    filtered: dict[str, Any] = {"resample": _resample(tiles.filter)}
    if tiles.mode == "multiple" or (resize is not None and tiles.max_tiles == 1):
        return filtered | {
            "image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"longest_edge": tiles.size},
            "do_image_splitting": tiles.mode == "multiple",
        }  # fmt: skip
    filtered |= {"do_resize": True, "size": _sides((tiles.size, tiles.size))}
    if tiles.mode == "resolutions":
        points = [[*resolution] for resolution in tiles.resolutions]
        return filtered | {"image_processor_type": "LlavaOnevisionImageProcessor", "image_grid_pinpoints": points}
    return filtered | {
        "image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": True, "min_patches": tiles.min_tiles,
        "max_patches": tiles.max_tiles,
    }  # fmt: skip


def _resample(filter: Filter) -> int:
    # transformers calls nearest-exact of tensors nearest.
    return FILTERS.index("nearest" if filter == "nearest-exact" else filter)


def _sides(size_hw: tuple[int, int]) -> dict[str, int]:
    return {"height": size_hw[0], "width": size_hw[1]}
