"""What the configs of image processors that make patches state: Qwen2-VL's."""

from __future__ import annotations

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import whole
from onestream.preprocess.interop.huggingface.files import Config
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Filter, Normalize, Patches


def within_pixels(config: Config, filter: Filter) -> Resize:
    """A resize between two numbers of pixels, which later versions write as the edges of a size."""
    size, patches = config.get("size") or {}, _patches(config)
    bounds = [
        next(
            (value for value in (config.get(f"{end}_pixels"), size.get(edge), size.get(f"{end}_pixels")) if value), None
        )
        for end, edge in (("min", "shortest_edge"), ("max", "longest_edge"))
    ]
    if None in bounds:
        raise CannotImport(
            "the config does not state min_pixels and max_pixels (size.shortest_edge and size.longest_edge), whose "
            "defaults depend on transformers' version: add them"
        )
    least, most = (whole(value, where=f"{end}_pixels") for value, end in zip(bounds, ("min", "max"), strict=True))
    return Resize(mode="area", multiple_of=patches.unit, min_pixels=least, max_pixels=most, filter=filter)


def in_patches(definition: Definition, config: Config, *, folded: bool) -> Definition:
    """A definition that ends in patches, and normalizes in every bit as tensors are (``folded``), or as arrays are."""
    *operations, normalize, _ = definition.operations
    if not (isinstance(normalize, Normalize) and config.get("do_rescale", True) and config.get("do_normalize", True)):
        raise CannotImport("do_rescale and do_normalize must be true: other patches are not known to be exact")
    normalized = normalize.model_copy(update={"folded": folded})
    return definition.model_copy(update={"operations": (*operations, normalized, _patches(config))})


def _patches(config: Config) -> Patches:
    patch, temporal, merge = (
        whole(config.get(key, default), where=key)
        for key, default in (("patch_size", 14), ("temporal_patch_size", 2), ("merge_size", 2))
    )
    return Patches(patch=patch, temporal=temporal, merge=merge)
