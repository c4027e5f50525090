"""What image processors of vision-language models do beside their configs, and what these state: a table of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import whole
from onestream.preprocess.interop.huggingface.files import Config
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Filter, Normalize, Patches
from onestream.preprocess.operations.areas import Small

_BOUNDS = ("min_pixels", "max_pixels")


@dataclass(frozen=True)
class PatchRules:
    """``small`` and ``counts_frames`` (``temporal``) are the resize's; ``patches`` are fields of the last operation.

    ``temporal`` is the default of ``temporal_patch_size``, which most configs of its kind leave out.
    """

    small: Small = "keep"
    counts_frames: bool = False
    temporal: int = 2
    patches: Mapping[str, Any] = field(default_factory=dict)

    def resize(self, config: Config, filter: Filter) -> Resize:
        """The resize that a config states, between two numbers of pixels, which some write as the edges of a size."""
        size, patches = config.get("size") or {}, self._last(config)
        bounds = [
            next((value for value in (config.get(name), size.get(edge), size.get(name)) if value), None)
            for name, edge in zip(_BOUNDS, ("shortest_edge", "longest_edge"), strict=True)
        ]
        if None in bounds:
            raise CannotImport(
                "the config does not state min_pixels and max_pixels (size.shortest_edge and size.longest_edge), whose "
                "defaults depend on transformers' version: add them"
            )
        least, most = (whole(value, where=name) for value, name in zip(bounds, _BOUNDS, strict=True))
        return Resize(
            mode="area", multiple_of=patches.unit, min_pixels=least, max_pixels=most, filter=filter, small=self.small,
            temporal=patches.temporal if self.counts_frames else None,
        )  # fmt: skip

    def ended(self, definition: Definition, config: Config, *, folded: bool) -> Definition:
        """A definition that ends in patches, and normalizes in every bit as tensors are (``folded``), or as arrays."""
        *operations, normalize, _ = definition.operations
        does = [config.get(step, True) for step in ("do_rescale", "do_normalize")]
        if not (isinstance(normalize, Normalize) and all(does)):
            raise CannotImport("do_rescale and do_normalize must be true: other patches are not known to be exact")
        normalized = normalize.model_copy(update={"folded": folded})
        return definition.model_copy(update={"operations": (*operations, normalized, self._last(config))})

    def _last(self, config: Config) -> Patches:
        patch, temporal, merge = (
            whole(config.get(key, default), where=key)
            for key, default in (("patch_size", 14), ("temporal_patch_size", self.temporal), ("merge_size", 2))
        )
        return Patches(patch=patch, temporal=temporal, merge=merge, **self.patches)


QWEN2_VL = PatchRules()
GLM_4V = PatchRules(small="together", counts_frames=True)
PADDLEOCR_VL = PatchRules(small="each", temporal=1, patches={"order": "raster", "flatten": False})
