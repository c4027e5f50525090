"""What a network's ``config.json``, as transformers writes it, says of its pictures and of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Imported, class_names

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


_ACTIVATIONS = {
    "conditional_detr": "sigmoid",
    "d_fine": "sigmoid",
    "dab-detr": "sigmoid",
    "deformable_detr": "sigmoid",
    "detr": "softmax",
    "lw_detr": "sigmoid",
    "rf_detr": "sigmoid",
    "rt_detr": "sigmoid",
    "rt_detr_v2": "sigmoid",
    "table-transformer": "softmax",
    "yolos": "softmax",
}
"""By ``model_type``: what ``post_process_object_detection`` makes scores with."""
_SCORE_THRESHOLD = 0.5
"""The default of ``post_process_object_detection`` and of transformers' pipeline."""
_COUNTS = ("num_queries", "num_detection_tokens")
"""The most boxes that a network gives; YOLOS has the second."""
_AT_MOST_100 = ("conditional_detr", "dab-detr", "deformable_detr", "lw_detr")
"""Of these ``post_process_object_detection`` takes the best 100, the default here too."""


def with_boxes(imported: Imported, network: Mapping[str, Any]) -> Imported:
    """An image processor with the postprocessing of the network beside it, where that is a detector.

    ``network`` is the network's config. Raises ``CannotImport`` where its classes have no proper names.
    """
    architectures = network.get("architectures") or [""]
    if not str(architectures[0]).endswith("ForObjectDetection"):
        return imported
    model_type = network.get("model_type")
    activation = _ACTIVATIONS.get(str(model_type))
    if activation is None:
        known = ", ".join(_ACTIVATIONS)
        note = f"What the outputs of {model_type!r} mean is not known here, so they stay as they are. Known: {known}."
        return replace(imported, notes=(*imported.notes, note))
    # Of RT-DETR and its kin: trained with softmax's loss otherwise.
    if network.get("use_focal_loss") is False:
        activation = "softmax"
    fields: dict[str, Any] = {
        "kind": "detection",
        "family": "detr",
        "activation": activation,
        "score_threshold": _SCORE_THRESHOLD,
    }
    counts = [network[key] for key in _COUNTS if isinstance(network.get(key), int)]
    if counts and model_type not in _AT_MOST_100:
        fields |= {"max_detections": counts[0], "max_candidates": counts[0]}
    if network.get("id2label"):
        fields["labels"] = class_names(network["id2label"], where="id2label")
    return replace(imported, postprocess=fields)
