"""The network that the fused form runs on a GPU: the pipeline's, with its postprocessing at the end."""

from __future__ import annotations

from pathlib import Path

from onestream.postprocess.options import read_postprocess
from onestream.serving.building import onnx_graph
from onestream.serving.building.onnx_postprocess import with_postprocess


def fused_network(model: Path, postprocess_json: str) -> bytes:
    """The content of the fused form's network, always the same for the same file, since a plan is found by it.

    ``model`` is the served network's file, ``postprocess_json`` the ``postprocess`` parameter of the model's
    configuration. Raises ``BadNetwork`` where one does not fit the other.
    """
    postprocess = read_postprocess(postprocess_json)
    return bytes(with_postprocess(onnx_graph.load(model), postprocess).SerializeToString(deterministic=True))
