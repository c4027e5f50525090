"""MediaPipe's selfie segmentation as an ONNX model: which pixels belong to persons.

The network is the general one of the two (256×256), trained on single persons close to the camera. The file is part of
the package; ``README.md beside it`` says where it comes from.
"""

from __future__ import annotations

from importlib import resources

import onnx


def load_selfie_segmentation() -> onnx.ModelProto:
    """Return the network.

    Input ``input``: float32 [batch, 256, 256, 3], RGB in 0 to 1. Output ``person``: float32 [batch, 256, 256], the
    probability of a person, 0 to 1. ``batch`` is dynamic. Inside, values are NCHW, as runtimes want them.
    """
    file = resources.files("onestream.pipelines.networks") / "selfie_segmentation.onnx"
    return onnx.load_model_from_string(file.read_bytes())
