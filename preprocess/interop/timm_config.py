"""Definitions from and as timm's ``pretrained_cfg``: what ``timm.data.create_transform`` makes of it for evaluation."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile, CannotImport
from onestream.preprocess.interop.common import assemble, check_same, filter_named, pair, per_channel, refusing, ringed
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode, Operation

_DEFAULTS: dict[str, Any] = {
    "input_size": (3, 224, 224), "interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "center",
    "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225),
}  # fmt: skip
"""What ``timm.data.resolve_data_config`` takes where a config says nothing."""


@refusing()
def from_timm(config: Mapping[str, Any] | str | Any, *, use_test_size: bool = False) -> Definition:
    """The evaluation transform of a model.

    ``config`` is a ``pretrained_cfg`` as a dict, the content of a ``config.json`` that holds one, timm's
    ``PretrainedCfg``, or the name of a model, for which timm must be installed. ``use_test_size`` takes
    ``test_input_size`` and ``test_crop_pct`` where there are such.

    Raises ``CannotImport`` for what a definition cannot state exactly, ``BackendMissing`` without timm.
    """
    if isinstance(config, str):
        config = registered(config)
    if not isinstance(config, Mapping):
        config = config.to_dict()
    config = config.get("pretrained_cfg", config)
    if not any(key in config for key in _DEFAULTS):
        raise CannotImport(f"not a timm config: it has none of {', '.join(_DEFAULTS)}")
    chosen = {key: config.get(key) or default for key, default in _DEFAULTS.items()}
    if use_test_size:
        chosen["input_size"] = config.get("test_input_size") or chosen["input_size"]
        chosen["crop_pct"] = config.get("test_crop_pct") or chosen["crop_pct"]

    size_hw = _size(chosen["input_size"])
    crop_pct = chosen["crop_pct"]
    if not isinstance(crop_pct, int | float) or crop_pct <= 0:
        raise CannotImport(f"crop_pct is {crop_pct!r}, expected a number above 0")
    height, width = (math.floor(side / crop_pct) for side in size_hw)
    filter = filter_named(chosen["interpolation"], where="interpolation")
    operations: list[Operation] = [Decode()]
    if chosen["crop_mode"] == "squash":
        operations.append(Resize(mode="exact", size=(height, width), filter=filter))
        operations.append(CenterCrop(size=size_hw))
    elif chosen["crop_mode"] == "border":
        if (height, width) != size_hw:
            raise CannotImport(
                f"crop_mode is 'border' and crop_pct {crop_pct}, so that timm pads to one size and crops to another. "
                "The nearest exact is crop_pct 1"
            )
        fill = [round(255 * level) for level in per_channel(chosen["mean"], 3, where="mean")]
        operations += ringed(size_hw, fill, filter)
    elif chosen["crop_mode"] != "center":
        raise CannotImport(f"crop_mode is {chosen['crop_mode']!r}; exact are 'center', 'squash' and 'border'")
    elif height != width:
        raise CannotImport(
            f"input_size {list(size_hw)} is no square and crop_mode is 'center': timm then rounds both sides of the "
            "resize, which no mode of resize does. The nearest exact is crop_mode 'squash' or a square input_size"
        )
    else:
        operations.append(Resize(mode="shorter", size=height, filter=filter))
        operations.append(CenterCrop(size=size_hw))
    step = (per_channel(chosen["mean"], 3, where="mean"), per_channel(chosen["std"], 3, where="std"))
    return assemble(operations, scale=255.0, steps=[step], dtype="float32")


def to_timm(definition: Definition) -> dict[str, Any]:
    """The config with which ``timm.data.create_transform(**config)`` makes the same pixels.

    Raises ``CannotCompile`` naming what timm's evaluation transform does not do.
    """
    resize, normalize, (height, width) = definition.resize, definition.normalize, definition.output_spec.size_hw
    if resize is None or normalize is None or height is None or width is None:
        raise CannotCompile("timm's transform resizes to a size that is the same for every picture, and normalizes")
    modes = {"shorter": "center", "exact": "squash", "fit": "border"}
    if resize.mode not in modes or resize.size is None:
        raise CannotCompile(f"timm has no resize with mode {resize.mode!r}; it has {', '.join(map(repr, modes))}")
    before = resize.size if isinstance(resize.size, int) else resize.size[0]
    exact = height / before
    config = {
        "input_size": (3, height, width),
        "interpolation": resize.filter,
        "crop_mode": modes[resize.mode],
        # timm truncates the quotient, which floats may miss by their last bit.
        "crop_pct": exact if math.floor(height / exact) == before else math.nextafter(exact, 0),
        "mean": normalize.mean,
        "std": normalize.std,
    }
    try:
        read = from_timm(config)
    except CannotImport as error:
        raise CannotCompile(f"timm's transform does not do this: {error}") from None
    check_same(definition, read, what="transforms of timm")
    return config


def registered(name: str) -> Any:
    """timm's ``PretrainedCfg`` of a model, such as *mobilenetv3_small_100.lamb_in1k*.

    Raises ``BackendMissing`` without timm and ``CannotImport``, with names like it, where timm knows no such model.
    """
    models = load("timm.models")
    known = {*models.list_models(), *models.list_pretrained()}
    if name not in known:
        like = difflib.get_close_matches(name, known, n=3)
        hint = f"; like it are {', '.join(like)}" if like else ""
        raise CannotImport(f"timm has no model {name!r}{hint}")
    return models.get_pretrained_cfg(name)


def _size(input_size: Any) -> tuple[int, int]:
    try:
        channels, height, width = input_size
    except (TypeError, ValueError):
        raise CannotImport(f"input_size is {input_size!r}, expected [channels, height, width]") from None
    if channels != 3:
        raise CannotImport(f"input_size has {channels!r} channels; only 3, RGB, are exact")
    return pair((height, width), where="input_size")
