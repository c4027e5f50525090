"""Arguments that processors of pictures and text pass to their image processor, whatever its config says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onestream.preprocess.interop.huggingface.files import Config

_CROPS = ("GotOcr2", {"crop_to_patches": True})
_PASSED: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "AyaVisionProcessor": _CROPS,
        "GotOcr2Processor": ("GotOcr2", {"crop_to_patches": False, "min_patches": 1, "max_patches": 12}),
        "InternVLProcessor": _CROPS,
        "QianfanOCRProcessor": _CROPS,
        "Siglip2Processor": ("Siglip2", {"max_num_patches": 256, "patch_size": 16}),
    }
)
"""By ``processor_class``: the kind of image processor, and the ``images_kwargs`` of the class that change pixels."""
_DEFAULTS = {"crop_to_patches": False, "min_patches": 1, "max_patches": 12, "max_num_patches": 256, "patch_size": 16}


def as_called(config: Config) -> tuple[Config, tuple[str, ...]]:
    """The config of an image processor as the processor of its model calls it, and a sentence if that changes it.

    ``config`` may be the processor's own, a ``processor_config.json``, which holds the image processor's.
    """
    inner = config.get("image_processor", config)
    name = str(config.get("processor_class") or inner.get("processor_class"))
    kind, passed = _PASSED.get(name, ("", {}))
    if not str(inner.get("image_processor_type")).startswith(f"{kind}ImageProcessor"):
        return inner, ()
    changed = {key: value for key, value in passed.items() if inner.get(key, _DEFAULTS[key]) != value}
    if not changed:
        return inner, ()
    fields = " and ".join(f"{key}: {str(value).lower()}" for key, value in changed.items())
    note = (
        f"As {name} calls its image processor: with {fields}, whatever the config says. Of the image processor called "
        "alone, import its config without processor_class."
    )
    return {**inner, **changed}, (note,)
