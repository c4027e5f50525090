"""What a network's ``config.json`` says of its pictures, beside their image processor: its own code does that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onestream.preprocess.errors import CannotImport

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "dynamic_image_size": (False,),
    "image_aspect_ratio": ("square",),
    "image_grid_pinpoints": ([],),
    "max_dynamic_patch": (1,),
    "slice_mode": (False,),
    "use_thumbnail": (False,),
}
"""Fields of LLaVA, InternVL and MiniCPM-V, and the values with which the image processor alone makes the pixels."""


def check_network(network: Mapping[str, Any]) -> None:
    """Raise ``CannotImport`` where a network pads or tiles pictures before its image processor gets them."""
    for field, harmless in _HARMLESS.items():
        value = network.get(field)
        if value is not None and value not in harmless:
            raise CannotImport(
                f"the config.json beside it says {field}: {str(value)[:60]}, so that the network's own code pads or "
                "tiles pictures before its image processor, and that alone would be another preprocessing. The nearest "
                "exact is a pipeline of your own: letterbox for pad, one tile for tiles; measure its accuracy"
            )
