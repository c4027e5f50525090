"""The default pipeline's network for the GPU suite, built where it is not there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]


@cache
def served_network() -> bytes:
    """The ONNX of the default pipeline as it is served, stamped."""
    built = ROOT / "model_repository" / "classify_fused" / "1" / "model.onnx"
    if built.exists():
        return built.read_bytes()
    from onestream.serving.building import onnx_graph
    from onestream.serving.networks.efficientnet_lite import export_efficientnet_lite0, fetch_weights
    from onestream.serving.networks.legacy_pickle import read_legacy_checkpoint
    from onestream.serving.pipeline import Pipeline

    definition = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").preprocess
    exported = export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights()))
    return bytes(onnx_graph.prepare(exported, definition).SerializeToString())


@cache
def fused() -> bytes:
    """The same with the pipeline's postprocessing at its end."""
    import onnx

    from onestream.serving.building.onnx_postprocess import with_postprocess
    from onestream.serving.pipeline import Pipeline

    postprocess = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").postprocess
    extended = with_postprocess(onnx.load_from_string(served_network()), postprocess)
    return bytes(extended.SerializeToString(deterministic=True))


SURE_BY = 0.5
"""In logits: a level of a decoder in every second value moved the default network's best two by up to 0.25."""


def sure_class(logits: np.ndarray[Any, Any]) -> int | None:
    """The best class; None where the second is so close that a level in the decoder decides."""
    second, first = np.argsort(logits)[-2:]
    return int(first) if logits[first] - logits[second] > SURE_BY else None
