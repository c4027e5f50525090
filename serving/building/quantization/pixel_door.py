"""Makes the uint8 pixels the first quantized tensor of a served network, so that normalization costs nothing.

``(x - m) / s`` of a pixel x is ``DequantizeLinear(x, 1 / s, m)``, where m is a whole level and all channels have one m
and one s. Where they have not, the first convolution takes the rest: its weights are divided by each channel's s, and
its bias takes what the rounding of m left over. The zeros that it pads with stand for m, so the pixels are then padded
with the nearest level of each channel: at most half a level from m, and at the border alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from onestream.preprocess import Definition
from onestream.serving.engine.quantization import Door
from onestream.serving.engine.served import DOOR, DOOR_PREFIX

_Floats = npt.NDArray[np.float64]
_LEVELS = 255
_PLANAR = 1
"""The axis of the channels in NCHW."""


def with_pixels_first(served: onnx.ModelProto, definition: Definition) -> tuple[onnx.ModelProto, Door]:
    """The served network, of opset 13 or newer, with one DequantizeLinear for a door; the argument is not changed.

    It computes the same within float32's rounding, and the half level at the border where a part of it is folded into
    the convolution. Where neither is possible the network is returned as it is, and the door is *float32*.
    """
    if definition.output_spec.dtype != "float32":
        return served, "float32"
    changed = onnx.ModelProto()
    changed.CopyFrom(served)
    graph = _Graph(changed, axis=_PLANAR if definition.network_input.layout == "NCHW" else 3)
    affine = graph.take_in(_Affine.of(definition))
    if affine.is_uniform and affine.nearest[0] == affine.mean[0]:
        graph.put_door(affine.std[0], affine.nearest[0])
        return changed, "pixels"
    return (changed, "folded") if graph.fold(affine) else (served, "float32")


@dataclass(frozen=True, slots=True, eq=False)
class _Affine:
    """``(x - mean) / std`` of a pixel's levels, a value for each channel."""

    mean: _Floats
    std: _Floats

    @classmethod
    def of(cls, definition: Definition) -> _Affine:
        normalize, channels = definition.normalize, definition.output_spec.channels
        if normalize is None:
            return cls(np.zeros(channels), np.ones(channels))
        mean, std = (np.array(values, np.float64) * normalize.scale for values in (normalize.mean, normalize.std))
        return cls(mean, std)

    @property
    def is_uniform(self) -> bool:
        """Whether all channels have the same."""
        return bool(np.ptp(self.mean) == 0 and np.ptp(self.std) == 0)

    @property
    def nearest(self) -> npt.NDArray[np.int64]:
        """The levels that are closest to the means."""
        return np.rint(self.mean).clip(0, _LEVELS).astype(np.int64)

    def then(self, operator: str, constant: _Floats) -> _Affine | None:
        """Followed by an operation with a constant on its right; None where that turns the sign."""
        if operator == "Sub":
            return _Affine(self.mean + constant * self.std, self.std)
        if operator == "Add":
            return _Affine(self.mean - constant * self.std, self.std)
        if not (constant > 0).all():
            return None
        return _Affine(self.mean, self.std * constant if operator == "Div" else self.std / constant)


class _Graph:
    """A served network's graph, which is changed. ``axis`` is that of the channels in what the network takes."""

    def __init__(self, model: onnx.ModelProto, *, axis: int) -> None:
        self._graph, self._axis = model.graph, axis
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._old = list(takewhile(lambda node: node.name.startswith(DOOR_PREFIX), model.graph.node))
        self._new: list[onnx.NodeProto] = []
        self._pixels = DOOR
        if axis == _PLANAR:
            self._pixels = self._add("Transpose", [DOOR], "planes", perm=[0, 3, 1, 2])

    @property
    def _end(self) -> str:
        """The tensor that the door gives."""
        return str(self._old[-1].output[0])

    def take_in(self, affine: _Affine) -> _Affine:
        """The normalization with that of the network's own first nodes, which belong to the door from now on."""
        while len(readers := self._readers(self._end)) == 1:
            (node,) = readers
            constant = self._per_channel(node, len(affine.mean))
            following = None if constant is None else affine.then(node.op_type, constant)
            if following is None:
                break
            self._old.append(node)
            affine = following
        return affine

    def put_door(self, std: float, zero: int) -> None:
        """Replace the old door: a level ``zero`` stands for 0, and ``std`` levels for 1."""
        scale, level = (
            self._constant(DOOR_PREFIX + name, value)
            for name, value in (("scale_of_a_level", np.float32(1 / std)), ("level_of_zero", np.uint8(zero)))
        )
        end = self._end
        self._add("DequantizeLinear", [self._pixels, scale, level], "dequantized", output=end)
        gone = {name for node in self._old for name in node.output}
        kept = [node for node in self._graph.node if node.output[0] not in gone]
        del self._graph.node[:]
        self._graph.node.extend([*self._new, *kept])
        used = {name for node in self._graph.node for name in node.input}
        constants = [tensor for tensor in self._graph.initializer if tensor.name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend(constants)

    def fold(self, affine: _Affine) -> bool:
        """The same, with what differs between channels in the convolutions that read it; False where that cannot be."""
        convolutions = self._convolutions()
        if not convolutions or (np.abs(affine.nearest - affine.mean) > 0.5).any():
            return False
        zero = int(np.median(affine.nearest))
        if (affine.nearest != zero).any() and any(map(_pads, convolutions)) and not self._pad(convolutions, affine):
            return False
        std = float(affine.std.mean())
        for number, node in enumerate(convolutions):
            self._take_over(node, affine, std, zero, prefix=f"{DOOR_PREFIX}convolution_{number}_")
        self.put_door(std, zero)
        return True

    def _convolutions(self) -> list[onnx.NodeProto]:
        """The convolutions with known weights that read the door; none where anything else does."""
        end = self._end
        while len(readers := self._readers(end)) == 1 and readers[0].op_type == "Transpose":
            end = readers[0].output[0]
        known = all(
            node.op_type == "Conv" and node.input[0] == end and all(name in self._constants for name in node.input[1:])
            for node in readers
        )
        is_output = any(value.name == end for value in self._graph.output)
        return readers if known and not is_output else []

    def _pad(self, convolutions: list[onnx.NodeProto], affine: _Affine) -> bool:
        """Pad the planes of the pixels in place of the one convolution that reads them; False where that cannot be."""
        node = convolutions[0]
        pads = _attribute(node, "pads")
        if len(convolutions) > 1 or self._axis != _PLANAR or pads is None or len(pads.ints) != 4:
            return False
        sides = list(pads.ints)
        around = self._constant(DOOR_PREFIX + "pads", np.array([0, 0, *sides[:2], 0, 0, *sides[2:]], np.int64))
        planes = [f"{DOOR_PREFIX}plane_{channel}" for channel in range(len(affine.mean))]
        # Without their sizes, opset 18 and later ask for their number, which opsets before do not know.
        sizes = self._constant(DOOR_PREFIX + "plane_sizes", np.ones(len(planes), np.int64))
        split = helper.make_node("Split", [self._pixels, sizes], planes, name=DOOR_PREFIX + "split", axis=_PLANAR)
        self._new.append(split)
        padded = [
            self._add("Pad", [plane, around, self._constant(f"{plane}_level", np.uint8(level))], f"padded_{channel}")
            for channel, (plane, level) in enumerate(zip(planes, affine.nearest, strict=True))
        ]
        self._pixels = self._add("Concat", padded, "padded", axis=_PLANAR)
        pads.ints[:] = [0, 0, 0, 0]
        return True

    def _take_over(self, node: onnx.NodeProto, affine: _Affine, std: float, zero: int, *, prefix: str) -> None:
        """Let a convolution take ``(x - zero) / std`` for what it took."""
        weights = numpy_helper.to_array(self._constants[node.input[1]]).astype(np.float64)
        groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        out, inside = weights.shape[:2]
        # The channel of the pixels that each weight is for.
        channels = (np.arange(out) // (out // groups))[:, None] * inside + np.arange(inside)
        exact = weights / affine.std[channels][:, :, None, None]
        left_over = (exact * (zero - affine.mean[channels])[:, :, None, None]).sum(axis=(1, 2, 3))
        bias = numpy_helper.to_array(self._constants[node.input[2]]) if len(node.input) > 2 else np.zeros(out)
        names = [prefix + "weights", prefix + "bias"]
        for name, values in zip(names, (exact * std, bias + left_over), strict=True):
            self._constant(name, values.astype(np.float32))
        node.input[1:] = names

    def _per_channel(self, node: onnx.NodeProto, channels: int) -> _Floats | None:
        """The constant on an elementwise node's right, or for Add and Mul on any side, as a value for each channel."""
        if node.op_type not in ("Add", "Sub", "Mul", "Div") or any(v.name == self._end for v in self._graph.output):
            return None
        sides = [name for name in node.input if name != self._end]
        is_left = node.input[0] == self._end
        if len(sides) != 1 or sides[0] not in self._constants or not (is_left or node.op_type in ("Add", "Mul")):
            return None
        values = numpy_helper.to_array(self._constants[sides[0]]).astype(np.float64)
        if values.size == 1:
            return np.full(channels, values.item())
        shape = [1, 1, 1]
        shape[self._axis - 1] = channels
        return values.reshape(channels) if list(values.shape[-3:]) == shape[-values.ndim :] else None

    def _readers(self, tensor: str) -> list[onnx.NodeProto]:
        return [node for node in self._graph.node if tensor in node.input]

    def _add(self, operator: str, inputs: list[str], name: str, *, output: str = "", **attributes: object) -> str:
        name = DOOR_PREFIX + name
        self._new.append(helper.make_node(operator, inputs, [output or name], name=name, **attributes))
        return output or name

    def _constant(self, name: str, values: npt.NDArray[np.generic] | np.generic) -> str:
        tensor = numpy_helper.from_array(np.asarray(values), name)
        self._graph.initializer.append(tensor)
        self._constants[name] = tensor
        return name


def _pads(node: onnx.NodeProto) -> bool:
    pads, automatic = _attribute(node, "pads"), _attribute(node, "auto_pad")
    return (pads is not None and any(pads.ints)) or (
        automatic is not None and automatic.s not in (b"NOTSET", b"VALID", b"")
    )


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)
