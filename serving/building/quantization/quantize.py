"""Quantizes a served network with ``onnxruntime.quantization``, as QDQ: for a CPU and, from the same ranges, TensorRT.

A CPU takes uint8 activations and int8 weights. Left in float32 are the door, what comes after the last layers (softmax,
the decoding of boxes, the tails that a build appends), and the layers that a setting names.

TensorRT takes int8 for both and zero points of 0 only, and fuses best where nothing is rounded but what layers take:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html.
NVIDIA's own ``nvidia-modelopt`` wraps the same library, calibrates by itself, and brings PyTorch.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QDQQuantizer,
    QuantType,
    TensorsData,
    create_calibrator,
)
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from onestream.preprocess import Definition
from onestream.serving.building.quantization.pixel_door import with_pixels_first
from onestream.serving.engine.quantization import Ranges, Settings
from onestream.serving.engine.served import DOOR, DOOR_PREFIX
from onestream.serving.errors import BadNetwork
from onestream.serving.graph.onnx_nodes import TAIL_PREFIX, opset
from onestream.wire.plain_text import first_line

Pixels = npt.NDArray[np.uint8]

_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The operators with weights, in which nearly all of the arithmetic is."""
_PLAIN_OUTPUT = frozenset({"Gemm", "MatMul"})
"""Of these ONNX Runtime has kernels with integers in and floats out."""
_KEPT = frozenset({"ArgMax", "CumSum", "InstanceNormalization", "LayerNormalization", "Softmax", "TopK"})
"""What ONNX Runtime could quantize, and what loses too much by it or gains nothing."""
_HISTOGRAM_PICTURES = 16
"""A histogram takes ten times as long as a minimum, and these hold the values of some million places of each tensor."""
_OPSET = 13
"""The first whose DequantizeLinear takes a scale for each channel."""
_METHODS: dict[Ranges, tuple[CalibrationMethod, dict[str, Any]]] = {
    "minmax": (CalibrationMethod.MinMax, {}),
    "entropy": (CalibrationMethod.Entropy, {}),
    "percentile": (CalibrationMethod.Percentile, {"percentile": 99.99, "symmetric": False}),
}
_FOR_TENSORRT: Mapping[str, Any] = {
    "ActivationSymmetric": True,
    # TensorRT adds the bias in float32, and what a layer gives goes into its activation before it is rounded.
    "QuantizeBias": False,
    "OpTypesToExcludeOutputQuantization": sorted(_LAYERS),
}


class Quantizable:
    """A served network, and the pictures that it is calibrated with: uint8 (height, width, channels) each.

    ``door`` is what the network for a CPU begins with. Raises ``BadNetwork`` where it has no layers, or cannot be
    written in the opset that this takes.
    """

    def __init__(self, served: onnx.ModelProto, definition: Definition, pictures: Sequence[Pixels]) -> None:
        self._network = _named(_fused(_in_opset(served)))
        with_pixels, self.door = with_pixels_first(self._network, definition)
        self._pixels_first = _named(_copy(with_pixels))
        if not self.layers:
            raise BadNetwork(f"int8 is for networks with layers of {', '.join(sorted(_LAYERS))}; this one has none")
        self._pictures = pictures
        self._ranges: dict[Ranges, TensorsData] = {}

    @property
    def layers(self) -> list[str]:
        """Names of the nodes with weights, in the network's order."""
        return [node.name for node in self._network.graph.node if node.op_type in _LAYERS and not _is_ours(node)]

    @property
    def last_layers(self) -> list[str]:
        """Those of ``layers`` that no other comes after."""
        before = _before_a_layer(self._network.graph)
        return [
            node.name
            for node in self._network.graph.node
            if node.name in self.layers and not any(name in before for name in node.output)
        ]

    def for_cpu(self, settings: Settings) -> onnx.ModelProto:
        """The network in int8 for ONNX Runtime. Raises ``BadNetwork`` where its tools cannot do that."""
        after = {node.name for node in _after_the_layers(self._pixels_first.graph)}
        made = self._quantized(self._pixels_first, settings, QuantType.QUInt8, kept=after, operators=_operators())
        _give_floats(made.graph)
        return self._finished(made)

    def for_tensorrt(self, settings: Settings) -> onnx.ModelProto:
        """The network in int8 for TensorRT, which normalizes as the definition does. Raises as ``for_cpu``."""
        return self._finished(
            self._quantized(self._network, settings, QuantType.QInt8, operators=sorted(_LAYERS), options=_FOR_TENSORRT)
        )

    def _quantized(
        self,
        network: onnx.ModelProto,
        settings: Settings,
        activations: QuantType,
        *,
        kept: Collection[str] = (),
        operators: list[str],
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> onnx.ModelProto:
        ours = [node.name for node in network.graph.node if _is_ours(node)]
        with told_as_bad_network("be quantized"):
            ranges = self._ranges_by(settings.ranges)
            # The quantizer changes what it is given.
            quantizer = QDQQuantizer(
                _copy(network),
                settings.weights == "per_channel",
                False,
                QuantType.QInt8,
                activations,
                TensorsData(ranges.calibration_method, dict(ranges.items())),
                [],
                [*ours, *kept, *settings.kept_layers],
                operators,
                dict(options),
            )
            quantizer.quantize_model()
            return quantizer.model.model

    def _finished(self, made: onnx.ModelProto) -> onnx.ModelProto:
        with told_as_bad_network("be quantized"):
            ONNXModel(made).topological_sort()
            _put_door_first(made.graph)
            helper.set_model_props(made, {entry.key: entry.value for entry in self._network.metadata_props})
            onnx.checker.check_model(made)
        return made

    def _ranges_by(self, method: Ranges) -> TensorsData:
        """Measured once for each method; memory holds the activations of one picture at a time."""
        if method not in self._ranges:
            kind, options = _METHODS[method]
            with tempfile.TemporaryDirectory(prefix="onestream-calibration-") as folder:
                file = Path(folder) / "network.onnx"
                onnx.save(self._network, str(file))
                calibrator = create_calibrator(
                    file,
                    _operators(),
                    augmented_model_path=str(Path(folder) / "augmented.onnx"),
                    calibrate_method=kind,
                    extra_options=options,
                )
                for pixels in self._pictures if method == "minmax" else self._some_pictures():
                    calibrator.collect_data(_OnePicture(pixels))
                self._ranges[method] = calibrator.compute_data()
        return self._ranges[method]

    def _some_pictures(self) -> list[Pixels]:
        """At most so many as histograms take, from all over the list: regions of one picture lie side by side."""
        last = len(self._pictures) - 1
        chosen = np.linspace(0, last, min(last + 1, _HISTOGRAM_PICTURES)).round().astype(int)
        return [self._pictures[index] for index in chosen]


class _OnePicture(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, pixels: Pixels) -> None:
        self._left = [pixels]

    def get_next(self) -> dict[str, Pixels] | None:
        return {DOOR: self._left.pop()[None]} if self._left else None


@contextlib.contextmanager
def told_as_bad_network(what: str) -> Iterator[None]:
    """Whatever the library raises is a ``BadNetwork``; what it prints and logs is not shown."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except Exception as error:  # the library raises whatever a network makes it stumble over
        kind, reason = type(error).__name__, first_line(error)
        raise BadNetwork(f"ONNX Runtime's tools say that it cannot {what}: {kind}: {reason}") from None
    finally:
        root.setLevel(level)


def _operators() -> list[str]:
    return sorted(({*QDQRegistry} | {*QLinearOpsRegistry}) - _KEPT)


def _copy(network: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(network)
    return copied


def _in_opset(served: onnx.ModelProto) -> onnx.ModelProto:
    if opset(served) >= _OPSET:
        return _copy(served)
    with told_as_bad_network(f"be converted from opset {opset(served)} to {_OPSET}, the oldest for int8"):
        changed = version_converter.convert_version(served, _OPSET)
    # The converter writes sizes down, of which some become others.
    del changed.graph.value_info[:]
    helper.set_model_props(changed, {entry.key: entry.value for entry in served.metadata_props})
    return changed


def _fused(network: onnx.ModelProto) -> onnx.ModelProto:
    """The network with constants computed, and additions and batch normalization that follow a convolution within it.

    Else their operands are rounded too, and OpenVINO 2026.4 crashes on some.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="onestream-fusion-") as folder, told_as_bad_network("be quantized"):
        options.optimized_model_filepath = str(Path(folder) / "network.onnx")
        # A Gemm would have another name than the MatMul that a setting names.
        ort.InferenceSession(network.SerializeToString(), options, disabled_optimizers=["MatMulAddFusion"])
        fused = onnx.load(options.optimized_model_filepath)
    del fused.opset_import[:]
    fused.opset_import.extend(network.opset_import)
    helper.set_model_props(fused, {entry.key: entry.value for entry in network.metadata_props})
    return fused


def _named(network: onnx.ModelProto) -> onnx.ModelProto:
    """Every node under a name of its own, by which it can be left out; the argument is changed."""
    taken: set[str] = set()
    for number, node in enumerate(network.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{number}"
        taken.add(node.name)
    return network


def _is_ours(node: onnx.NodeProto) -> bool:
    return bool(node.name.startswith(DOOR_PREFIX))


def _before_a_layer(graph: onnx.GraphProto) -> set[str]:
    """Names of the tensors that a layer's result depends on."""
    found: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type in _LAYERS or any(name in found for name in node.output):
            found.update(node.input)
    return found


def _after_the_layers(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that are no layers, and whose results no layer depends on."""
    before = _before_a_layer(graph)
    return [
        node for node in graph.node if node.op_type not in _LAYERS and not any(name in before for name in node.output)
    ]


def _give_floats(graph: onnx.GraphProto) -> None:
    """Take away the rounding of a product that leaves the network, or goes on in float32 alone."""
    makers = {name: node for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output}
    for quantize in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
        maker = makers.get(quantize.input[0])
        pairs = [node for node in graph.node if quantize.output[0] in node.input]
        if maker is None or maker.op_type not in _PLAIN_OUTPUT or len(pairs) != 1:
            continue
        (dequantize,) = pairs
        before, after = quantize.input[0], dequantize.output[0]
        readers = [node for node in graph.node if after in node.input]
        if any(_goes_on_as_int8(graph, node) for node in readers):
            continue
        graph.node.remove(quantize)
        graph.node.remove(dequantize)
        # An output of the network keeps its name.
        kept, gone = (after, before) if after in outputs else (before, after)
        maker.output[:] = [kept if name == gone else name for name in maker.output]
        for node in graph.node:
            node.input[:] = [kept if name == gone else name for name in node.input]


def _goes_on_as_int8(graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
    """Whether what a node gives is rounded again, so that its kernel is one of integers."""
    return node.op_type in _LAYERS or any(
        other.op_type == "QuantizeLinear" for other in graph.node if node.output[0] in other.input
    )


def _put_door_first(graph: onnx.GraphProto) -> None:
    """The nodes that take the pixels come first, as in every served network."""
    door = [node for node in graph.node if _is_ours(node) and not node.name.startswith(TAIL_PREFIX)]
    others = [node for node in graph.node if not _is_ours(node) or node.name.startswith(TAIL_PREFIX)]
    del graph.node[:]
    graph.node.extend([*door, *others])
