"""What a served network takes and gives, read from its ONNX file."""

from __future__ import annotations

import onnx

from serving.engine.base import EngineTensor
from serving.errors import BadNetwork
from serving.network import DOOR, outputs


def load_served(model: bytes) -> onnx.ModelProto:
    """Parse a served network (``serving.network``).

    Raises ``BadNetwork`` where it is not ONNX, or its input is not the pixels, uint8 (batch, height, width, channels).
    """
    try:
        loaded = onnx.load_model_from_string(model)
    except Exception as error:  # the parser's exception type differs between protobuf versions
        raise BadNetwork(f"not an ONNX file ({type(error).__name__})") from None
    pixels = next((value for value in loaded.graph.input if value.name == DOOR), None)
    if pixels is None or pixels.type.tensor_type.elem_type != onnx.TensorProto.UINT8 or 0 in _dims(pixels):
        seen = ", ".join(_text(value) for value in loaded.graph.input) or "no input"
        raise BadNetwork(
            f"expected a served network, which takes {DOOR!r}, uint8 (batch, height, width, channels); got {seen}. "
            "Build the pipeline again: onestream build"
        )
    return loaded


def tensors(model: onnx.ModelProto) -> tuple[EngineTensor, tuple[EngineTensor, ...]]:
    """The input and the outputs of a served network.

    Raises ``BadNetwork`` where an output's size depends on the image, or ONNX cannot tell: memory is allocated once.
    """
    given = outputs(model)
    if any(None in output.dims for output in given):
        given = outputs(onnx.shape_inference.infer_shapes(model))
    found = []
    for output in given:
        dims = tuple(dim for dim in output.dims if dim is not None)
        if len(dims) < len(output.dims):
            raise BadNetwork(f"output {output.name!r} has size {list(output.dims)}; on a GPU every size must be known")
        found.append(EngineTensor(output.name, output.dtype, dims))
    pixels = next(value for value in model.graph.input if value.name == DOOR)
    return EngineTensor(DOOR, "uint8", _dims(pixels)), tuple(found)


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Sizes without the batch, 0 where they vary."""
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])


def _text(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = ", ".join(str(dim.dim_value or dim.dim_param or "?") for dim in tensor.shape.dim)
    return f"{value.name!r}, {onnx.TensorProto.DataType.Name(tensor.elem_type).lower()} ({dims})"
