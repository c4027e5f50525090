"""The default pipeline's network for the GPU suite, built where it is not there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def served_network() -> bytes:
    """The ONNX of the default pipeline as it is served, stamped."""
    built = ROOT / "model_repository" / "classify_fused" / "1" / "model.onnx"
    if built.exists():
        return built.read_bytes()
    from serving import network
    from serving.efficientnet_lite import export_efficientnet_lite0, fetch_weights
    from serving.legacy_pickle import read_legacy_checkpoint
    from serving.pipeline import Pipeline

    definition = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").preprocess
    exported = export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights()))
    return bytes(network.prepare(exported, definition).SerializeToString())


@cache
def fused() -> bytes:
    """The same with the pipeline's postprocessing at its end."""
    import onnx

    from serving.network_tail import with_postprocess
    from serving.pipeline import Pipeline

    postprocess = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").postprocess
    extended = with_postprocess(onnx.load_from_string(served_network()), postprocess)
    return bytes(extended.SerializeToString(deterministic=True))
