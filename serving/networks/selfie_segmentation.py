"""MediaPipe's selfie segmentation as an ONNX model: which pixels belong to persons. Made without TensorFlow.

``fetch_selfie_segmentation`` → ``read_tflite`` → ``export_selfie_segmentation``. The network is the general one of the
two (256×256), Apache-2.0, by Google; its model card is "MediaPipe Selfie Segmentation", 2021. It was trained on single
persons close to the camera. The same graph and weights are in npm's ``@mediapipe/selfie_segmentation``
0.1.1675465747, whose file lacks this one's metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onestream.serving.networks.tflite import BadTflite, Table, TfliteNetwork, TfliteOperator
from onestream.serving.networks.wheel_files import WheelFile, fetch

INPUT, OUTPUT = "input", "person"
INPUT_SIZE = 256

SELFIE_SEGMENTATION = WheelFile(
    requirement="mediapipe==0.10.14",
    member="mediapipe/modules/selfie_segmentation/selfie_segmentation.tflite",
    sha256="9ee168ec7c8f2a16c56fe8e1cfbc514974cbbb7e434051b455635f1bd1462f5c",
    download_mb=36,
)

_OPSET = 13  # the oldest with every operator used here; read by ONNX Runtime >= 1.6 and TensorRT >= 8
_IR_VERSION = 7  # the one published with opset 13
_SAME = 0  # the schema's Padding; VALID is 1


def fetch_selfie_segmentation(*, cache_dir: Path | None = None) -> Path:
    """Return the path of the checked network file (250 KB), downloading it with pip the first time.

    See ``wheel_files.fetch``. Raises ``WeightsError``.
    """
    return fetch(SELFIE_SEGMENTATION, cache_dir=cache_dir)


def export_selfie_segmentation(network: TfliteNetwork) -> onnx.ModelProto:
    """Return the network as ONNX.

    Input ``input``: float32 [batch, 256, 256, 3], RGB in 0 to 1. Output ``person``: float32 [batch, 256, 256], the
    probability of a person, 0 to 1. ``batch`` is dynamic. Inside, values are NCHW, as runtimes want them. Raises
    ``BadTflite`` naming what cannot be converted.
    """
    model = _Writer(network).model()
    onnx.checker.check_model(model, full_check=True)
    return model


class _Writer:
    """Writes one ONNX node or two for each operator; values are named by their number in the file."""

    def __init__(self, network: TfliteNetwork) -> None:
        self._network = network
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._constants = {
            number: tensor.values for number, tensor in enumerate(network.tensors) if tensor.values is not None
        }
        self._writers: dict[str, Callable[[TfliteOperator], None]] = {
            "ADD": self._elementwise,
            "AVERAGE_POOL_2D": self._average_of_all,
            "CONV_2D": self._convolution,
            "Convolution2DTransposeBias": self._transposed_convolution,
            "DEPTHWISE_CONV_2D": self._depthwise_convolution,
            "DEQUANTIZE": self._widen,
            "HARD_SWISH": self._hard_swish,
            "LOGISTIC": self._elementwise,
            "MUL": self._elementwise,
            "RELU": self._elementwise,
            "RESIZE_BILINEAR": self._resize,
        }

    def model(self) -> onnx.ModelProto:
        """The whole model."""
        (first,), (last,) = self._network.inputs, self._network.outputs
        self._node("Transpose", [INPUT], _name(first), perm=[0, 3, 1, 2])
        for operator in self._network.operators:
            writer = self._writers.get(operator.kind)
            if writer is None:
                raise BadTflite(f"operator {operator.kind} cannot be converted")
            writer(operator)
        self._node("Squeeze", [_name(last), self._constant("channel", np.array([1], np.int64))], OUTPUT)
        size = [INPUT_SIZE, INPUT_SIZE]
        graph = helper.make_graph(
            self._nodes,
            "selfie_segmentation",
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *size, 3])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", *size])],
            self._initializers,
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="onestream",
        )

    def _widen(self, op: TfliteOperator) -> None:
        """Weights are stored as float16 and used as float32."""
        self._constants[op.outputs[0]] = self._values(op.inputs[0]).astype(np.float32)

    def _elementwise(self, op: TfliteOperator) -> None:
        if op.options is not None and op.options.integer(0, format="<b"):
            raise BadTflite(f"operator {op.kind} has an activation fused into it, which is not supported")
        name = {"ADD": "Add", "LOGISTIC": "Sigmoid", "MUL": "Mul", "RELU": "Relu"}[op.kind]
        self._node(name, [_name(number) for number in op.inputs], _name(op.outputs[0]))

    def _hard_swish(self, op: TfliteOperator) -> None:
        """``x * min(max(x + 3, 0), 6) / 6``."""
        value, output = _name(op.inputs[0]), _name(op.outputs[0])
        self._node("HardSigmoid", [value], f"{output}.gate", alpha=1 / 6, beta=0.5)
        self._node("Mul", [value, f"{output}.gate"], output)

    def _average_of_all(self, op: TfliteOperator) -> None:
        options, shape = _options(op), self._network.tensors[op.inputs[0]].shape
        window = (options.integer(4), options.integer(3))
        if window != shape[1:3]:
            raise BadTflite(f"AVERAGE_POOL_2D of {window} in {shape[1:3]}; supported is the average of everything")
        self._node("GlobalAveragePool", [_name(op.inputs[0])], _name(op.outputs[0]))

    def _resize(self, op: TfliteOperator) -> None:
        options = _options(op)
        aligned, half_pixel = options.integer(2, format="<b"), options.integer(3, format="<b")
        before, after = (self._network.tensors[number].shape for number in (op.inputs[0], op.outputs[0]))
        if aligned or not half_pixel or any(new % old for new, old in zip(after[1:3], before[1:3], strict=True)):
            raise BadTflite("RESIZE_BILINEAR is supported with half-pixel centres, by whole factors")
        factors = np.array([1, 1, after[1] // before[1], after[2] // before[2]], np.float32)
        output = _name(op.outputs[0])
        inputs = [_name(op.inputs[0]), "", self._constant(f"{output}.factors", factors)]
        self._node("Resize", inputs, output, mode="linear", coordinate_transformation_mode="half_pixel")

    def _convolution(self, op: TfliteOperator) -> None:
        options = _options(op)
        self._check_plain(op, activation=options.integer(3, format="<b"), dilations=(options, 4))
        self._add_convolution(op, options, self._values(op.inputs[1]).transpose(0, 3, 1, 2), groups=1)

    def _depthwise_convolution(self, op: TfliteOperator) -> None:
        options, weights = _options(op), self._values(op.inputs[1])
        self._check_plain(op, activation=options.integer(4, format="<b"), dilations=(options, 5))
        if options.integer(3) != 1:
            raise BadTflite(f"DEPTHWISE_CONV_2D has depth multiplier {options.integer(3)}; supported is 1")
        self._add_convolution(op, options, weights.transpose(3, 0, 1, 2), groups=weights.shape[3])

    def _add_convolution(
        self, op: TfliteOperator, options: Table, weights: npt.NDArray[np.float32], *, groups: int
    ) -> None:
        output, kernel = _name(op.outputs[0]), weights.shape[2:]
        strides = (options.integer(2), options.integer(1))
        pads = [(0, 0), (0, 0)]
        if options.integer(0, format="<b") == _SAME:
            sizes = zip(self._network.tensors[op.inputs[0]].shape[1:3], kernel, strides, strict=True)
            pads = [_same_padding(*axis) for axis in sizes]
        inputs = [
            _name(op.inputs[0]),
            self._constant(f"{output}.weight", weights),
            self._constant(f"{output}.bias", self._values(op.inputs[2])),
        ]
        (top, bottom), (left, right) = pads
        self._node(
            "Conv", inputs, output, kernel_shape=kernel, strides=strides, pads=[top, left, bottom, right], group=groups
        )

    def _transposed_convolution(self, op: TfliteOperator) -> None:
        """MediaPipe's own operator; its options are padding, horizontal and vertical stride, as in TFLite's C API.

        ``mediapipe/util/tflite/operations/transpose_conv_bias.cc``. With a kernel as large as its stride nothing
        overlaps and nothing is padded, whatever the padding says.
        """
        _, stride_x, stride_y = struct.unpack("<3i", op.custom_options)
        weights, output = self._values(op.inputs[1]), _name(op.outputs[0])
        if weights.shape[1:3] != (stride_y, stride_x):
            raise BadTflite(f"{op.kind} has kernel {weights.shape[1:3]} and stride {(stride_y, stride_x)}, not equal")
        inputs = [
            _name(op.inputs[0]),
            self._constant(f"{output}.weight", weights.transpose(3, 0, 1, 2)),
            self._constant(f"{output}.bias", self._values(op.inputs[2])),
        ]
        strides = [stride_y, stride_x]
        self._node("ConvTranspose", inputs, output, kernel_shape=strides, strides=strides)

    def _check_plain(self, op: TfliteOperator, *, activation: int, dilations: tuple[Table, int]) -> None:
        table, first = dilations
        if activation or (table.integer(first, 1), table.integer(first + 1, 1)) != (1, 1):
            raise BadTflite(f"{op.kind} has a fused activation or a dilation, which is not supported")

    def _values(self, number: int) -> npt.NDArray[np.float32]:
        if number not in self._constants:
            raise BadTflite(f"tensor {number} must be a constant")
        return self._constants[number]

    def _constant(self, name: str, values: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> str:
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: object) -> None:
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))


def _name(number: int) -> str:
    return f"value_{number}"


def _options(op: TfliteOperator) -> Table:
    if op.options is None:
        raise BadTflite(f"{op.kind} has no options")
    return op.options


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME: as many outputs as strides fit, the odd pixel behind."""
    padding = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return padding // 2, padding - padding // 2
