"""What image processors of vision-language models do beside their configs, and what these state, one class a kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.geometry import Small
from onestream.preprocess.interop.common import pair, whole
from onestream.preprocess.interop.huggingface.files import Config
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Filter, Normalize, Patches

_BOUNDS = ("min_pixels", "max_pixels")


def exact_normalize(definition: Definition, config: Config, *, folded: bool, what: str) -> Normalize:
    """The ``normalize`` before the output, as tensors are (``folded``) or as arrays. Raises ``CannotImport``."""
    normalize = definition.operations[-2]
    if not (isinstance(normalize, Normalize) and config.get("do_rescale", True) and config.get("do_normalize", True)):
        raise CannotImport(f"do_rescale and do_normalize must be true: other {what} are not known to be exact")
    return normalize.model_copy(update={"folded": folded})


class PatchRules(ABC):
    """``resample`` is the default, which is the same in every version, and most configs leave it out."""

    resample: ClassVar[int] = 3

    @abstractmethod
    def resize(self, config: Config, filter: Filter) -> Resize:
        """The resize that a config states. Raises ``CannotImport``."""

    @abstractmethod
    def last(self, config: Config) -> Patches:
        """The last operation. Raises ``CannotImport``."""

    def ended(self, definition: Definition, config: Config, *, folded: bool) -> Definition:
        """A definition that ends in patches, and normalizes in every bit as tensors are (``folded``), or as arrays."""
        *operations, _, _ = definition.operations
        normalize = exact_normalize(definition, config, folded=folded, what="patches")
        return definition.model_copy(update={"operations": (*operations, normalize, self.last(config))})


@dataclass(frozen=True)
class AreaRules(PatchRules):
    """Between two numbers of pixels, which some configs write as the edges of a size.

    ``small`` and ``counts_frames`` (``temporal``) are the resize's; ``temporal`` is the default of
    ``temporal_patch_size``, ``fields`` are those of the last operation. ``video_tokens``: the default of
    ``max_video_tokens`` where videos have it, which bounds the other pixels than ``max_pixels`` does (``cap_pixels``).
    """

    small: Small = "keep"
    counts_frames: bool = False
    temporal: int = 2
    video_tokens: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def resize(self, config: Config, filter: Filter) -> Resize:
        """See ``PatchRules``."""
        size, patches = config.get("size") or {}, self.last(config)
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
            temporal=patches.temporal if self.counts_frames else None, cap_pixels=self._cap(config, patches),
        )  # fmt: skip

    def _cap(self, config: Config, patches: Patches) -> int | None:
        if not config.get("cap_pixels_per_frame") or "video_processor_type" not in config:
            return None
        tokens = whole(config.get("max_video_tokens") or self.video_tokens, where="max_video_tokens")
        of_tokens = tokens * patches.unit**2
        return of_tokens if self.counts_frames else int(of_tokens * 0.9) * patches.temporal

    def last(self, config: Config) -> Patches:
        """See ``PatchRules``."""
        patch, temporal, merge = (
            whole(config.get(key, default), where=key)
            for key, default in (("patch_size", 14), ("temporal_patch_size", self.temporal), ("merge_size", 2))
        )
        return Patches(patch=patch, temporal=temporal, merge=merge, **self.fields)


class _Pixtral(PatchRules):
    """Into a square, or a box, and up to whole patches, which the network cuts."""

    def resize(self, config: Config, filter: Filter) -> Resize:
        size = {key: value for key, value in dict(config.get("size") or {}).items() if value is not None}
        fields: dict[str, Any]
        if set(size) == {"longest_edge"}:
            fields = {"mode": "longer", "size": whole(size["longest_edge"], where="size.longest_edge")}
        elif set(size) == {"height", "width"}:
            fields = {"mode": "fit", "size": pair((size["height"], size["width"]), where="size")}
        else:
            raise CannotImport(f"size is {size}; exact are longest_edge alone, or height and width")
        return Resize(
            **fields, enlarge=False, multiple_of=self.last(config).patch, multiples="up", rounding="quotient_down",
            filter=filter,
        )  # fmt: skip

    def last(self, config: Config) -> Patches:
        if not config.get("do_pad", True):
            raise CannotImport("do_pad is false, so that pictures of a batch have several shapes; exact is true")
        sides = config.get("patch_size", 16)
        if isinstance(sides, Mapping):
            sides = [value for value in sides.values() if value is not None]
        height, width = pair(sides, where="patch_size")
        if height != width:
            raise CannotImport(f"patch_size is {height}x{width}; exact are square ones")
        return Patches(patch=height, temporal=1, merge=1, layout="image")


class _Siglip2(PatchRules):
    """As many patches as a bound allows, and rows up to that."""

    resample = 2

    def resize(self, config: Config, filter: Filter) -> Resize:
        patches = self.last(config)
        return Resize(mode="patches", max_patches=patches.pad_to, multiple_of=patches.patch, filter=filter)

    def last(self, config: Config) -> Patches:
        patch, most = (
            whole(config.get(key, default), where=key)
            for key, default in (("patch_size", 16), ("max_num_patches", 256))
        )
        return Patches(patch=patch, temporal=1, merge=1, layout="THWC", pad_to=most)


QWEN2_VL = AreaRules(video_tokens=128_000)
QWEN3_VL_VIDEO = AreaRules(small="together", counts_frames=True, video_tokens=768)
GLM_4V = AreaRules(small="together", counts_frames=True)
PADDLEOCR_VL = AreaRules(small="each", temporal=1, fields={"order": "raster", "flatten": False})
PIXTRAL, SIGLIP2 = _Pixtral(), _Siglip2()
