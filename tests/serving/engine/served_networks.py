"""Small served networks for the engine tests, over images of 32x32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from networks import mean_color, network_of
from onnx import helper

from onestream.preprocess import Decode, Definition, Normalize, Output, Resize
from onestream.serving.graph import onnx_graph

ADA = (8, 9)
"""A compute capability that TensorRT for RTX builds for."""


def definition(**output: str) -> Definition:
    """Images of 32x32."""
    operations = [Decode(), Resize(mode="exact", size=(32, 32))]
    if output.get("dtype") != "uint8":
        operations.append(Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)))
    return Definition(operations=(*operations, Output(**output)))


def served(model: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A network made ready to serve; class scores from the mean colour where none is given."""
    return onnx_graph.prepare(mean_color() if model is None else model, definition())


def convolutional(*extra: onnx.NodeProto, output: str = "scores", seed: int = 0) -> onnx.ModelProto:
    """Two convolutions, a pool and a matrix product, before its door; ``extra`` nodes make ``output`` of *scores*."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> npt.NDArray[np.float32]:
        return (random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["c1"], name="first", kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", kernel_shape=[3, 3]),
        helper.make_node("GlobalAveragePool", ["c2"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w3"], ["scores"], name="product", transB=1),
        *extra,
    ]
    constants = {"w1": weights(8, 3, 3, 3), "b1": weights(8), "w2": weights(16, 8, 3, 3), "w3": weights(10, 16)}
    return network_of(nodes, {"input": ["batch", 3, 32, 32]}, {output: ["batch", 10]}, constants, opset=17)


def random_pixels(count: int, size: int = 32) -> npt.NDArray[np.uint8]:
    """Images of noise, always the same."""
    return np.random.default_rng(3).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def run(model: onnx.ModelProto, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.generic]]:
    """Outputs by ONNX Runtime on the CPU, as one batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {"pixels": pixels}), strict=True))
