"""Definitions from ``open_clip_config.json``: what open_clip's ``image_transform`` builds of it for evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import assemble, pair, per_channel, refusing, ringed
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode, Filter, Operation

_DEFAULTS: dict[str, Any] = {
    "size": 224, "mode": "RGB", "mean": (0.48145466, 0.4578275, 0.40821073), "interpolation": "bicubic",
    "std": (0.26862954, 0.26130258, 0.27577711), "resize_mode": "shortest", "fill_color": 0,
}  # fmt: skip
"""Those of open_clip's ``PreprocessCfg``."""
_FILTERS: dict[Any, Filter] = {"bilinear": "bilinear", "bicubic": "bicubic", "random": "bicubic"}
"""*random* is of training."""


@refusing()
def from_open_clip(config: Mapping[str, Any]) -> Definition:
    """The evaluation transform of a model: of the content of its ``open_clip_config.json``, or its ``preprocess_cfg``.

    Raises ``CannotImport`` for what a definition cannot state exactly.
    """
    given = config.get("preprocess_cfg", config)
    model = config.get("model_cfg")
    vision = model.get("vision_cfg") if isinstance(model, Mapping) else None
    if not isinstance(given, Mapping):
        raise CannotImport(f"preprocess_cfg is {given!r}, expected fields such as 'mean'")
    chosen = {key: default if given.get(key) is None else given[key] for key, default in _DEFAULTS.items()}
    if given.get("size") is None and isinstance(vision, Mapping) and vision.get("image_size") is not None:
        chosen["size"] = vision["image_size"]
    if chosen["mode"] != "RGB":
        raise CannotImport(f"mode is {chosen['mode']!r}; open_clip has 'RGB' only")
    if chosen["interpolation"] not in _FILTERS:
        raise CannotImport(f"interpolation is {chosen['interpolation']!r}; open_clip has {', '.join(_FILTERS)}")
    size_hw, filter = pair(chosen["size"], where="size"), _FILTERS[chosen["interpolation"]]
    operations: list[Operation] = [Decode()]
    if chosen["resize_mode"] == "squash":
        operations.append(Resize(mode="exact", size=size_hw, filter=filter))
    elif chosen["resize_mode"] == "longest":
        operations += ringed(size_hw, chosen["fill_color"], filter)
    elif chosen["resize_mode"] != "shortest":
        raise CannotImport(f"resize_mode is {chosen['resize_mode']!r}; exact are 'shortest', 'longest' and 'squash'")
    elif size_hw[0] != size_hw[1]:
        raise CannotImport(
            f"size {list(size_hw)} is no square and resize_mode is 'shortest': open_clip then rounds both sides of the "
            "resize, which no mode of resize does. The nearest exact is resize_mode 'squash' or one side"
        )
    else:
        operations += [Resize(mode="shorter", size=size_hw[0], filter=filter), CenterCrop(size=size_hw)]
    step = (per_channel(chosen["mean"], 3, where="mean"), per_channel(chosen["std"], 3, where="std"))
    return assemble(operations, scale=255.0, steps=[step], dtype="float32")
