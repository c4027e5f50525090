"""PyTorch in the place of an engine, for GPU machines that have neither TensorRT nor ONNX Runtime with CUDA.

It executes the operators of the default network one by one on the caller's stream, and replays them as a CUDA graph:
enough to prove the stream and to measure decoding beside a network, not a way to serve. Results name it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as f
from onnx import helper, numpy_helper

from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.serving.engine import DeviceEngine, DeviceSession, EngineTensor
from onestream.serving.engine import served as served_network
from onestream.serving.engine.cuda_graphs import Replayed, batch_sizes, next_size

_DTYPES = {onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.INT32: torch.int32}


class TorchEngine(DeviceEngine):
    """The served network ``model`` in float32. Raises ``NotImplementedError`` for an operator that it does not know."""

    def __init__(self, model: bytes, device: Device, *, max_batch_size: int, on: str = "cuda") -> None:
        served = onnx.load_from_string(model)
        unknown = {node.op_type for node in served.graph.node} - set(_OPERATORS)
        if unknown:
            raise NotImplementedError(f"the operators {', '.join(sorted(unknown))}")
        # A sum in 10-bit mantissas would be another network.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        pixels = served.graph.input[0]
        dims = tuple(dim.dim_value for dim in pixels.type.tensor_type.shape.dim[1:])
        self.inputs = (EngineTensor(pixels.name, "uint8", dims),)
        self.outputs = tuple(
            EngineTensor(out.name, out.dtype, tuple(dim or 0 for dim in out.dims))
            for out in served_network.outputs(served)
        )
        self.max_batch_size = max_batch_size
        self.nodes = [
            (node.op_type, list(node.input), list(node.output), _attributes(node)) for node in served.graph.node
        ]
        place = f"cuda:{device.index}" if on == "cuda" else on
        # Counts stay on the host: to read one from the GPU would wait for it.
        self.constants = {
            tensor.name: torch.from_numpy(np.array(numpy_helper.to_array(tensor))).to(
                "cpu" if tensor.data_type == onnx.TensorProto.INT64 else place
            )
            for tensor in served.graph.initializer
        }
        self._on = on

    def open(self, stream: Stream) -> TorchSession:
        """See ``DeviceEngine.open``."""
        return TorchSession(self, stream, self._on)


class TorchSession(DeviceSession):
    """See ``DeviceSession``."""

    def __init__(self, engine: TorchEngine, stream: Stream, on: str) -> None:
        self._engine = engine
        rows = engine.max_batch_size
        self.inputs = {one.name: stream.allocate((rows, *one.dims), one.dtype) for one in engine.inputs}
        self.outputs = {out.name: stream.allocate((rows, *out.dims), out.dtype) for out in engine.outputs}
        self._tensor: Callable[[DeviceArray], torch.Tensor] = _on_gpu if on == "cuda" else _on_host
        queue = torch.cuda.ExternalStream(stream.handle) if on == "cuda" else None
        self._sizes = batch_sizes(rows)
        self._replayed = Replayed(stream.handle) if on == "cuda" else None
        self._current: Callable[[], AbstractContextManager[Any]] = (
            (lambda: torch.cuda.stream(queue)) if queue is not None else _nothing
        )

    def enqueue(self, batch: int) -> None:
        """See ``DeviceSession.enqueue``."""
        if not 1 <= batch <= self._engine.max_batch_size:
            raise ValueError(f"got a batch of {batch}; allowed: 1 to {self._engine.max_batch_size}")
        if self._replayed is None:
            self._run(batch)
        else:
            # All that a recorded run holds for a while is of this stream, whose runs follow one another.
            size = next_size(batch, self._sizes)
            self._replayed.queue(size, lambda: self._run(size))

    def close(self) -> None:
        """See ``DeviceSession.close``."""
        if self._replayed is not None:
            self._replayed.close()

    def _run(self, batch: int) -> bool:
        with torch.inference_mode(), self._current():
            given = {name: self._tensor(array.first(batch)) for name, array in self.inputs.items()}
            values = {**self._engine.constants, **given}
            for operator, inputs, outputs, attributes in self._engine.nodes:
                results = _OPERATORS[operator](*(values[name] for name in inputs), **attributes)
                values |= dict(zip(outputs, results if isinstance(results, tuple) else (results,), strict=False))
            for name, array in self.outputs.items():
                self._tensor(array.first(batch)).copy_(values[name])
        return True


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _conv(
    x: Any, weight: Any, bias: Any = None, *, pads: Any = (0, 0, 0, 0), strides: Any = (1, 1), **rest: Any
) -> Any:
    # ONNX names all beginnings, then all ends; PyTorch pads the last axis first.
    top, left, bottom, right = pads
    padded = f.pad(x, (left, right, top, bottom)) if any(pads) else x
    return f.conv2d(padded, weight, bias, stride=tuple(strides), groups=rest.get("group", 1))


def _top_k(x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    return torch.topk(x, int(k.item()), dim=axis, largest=bool(largest), sorted=bool(sorted))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Cast": lambda x, to: x.to(_DTYPES[to]),
    "Clip": torch.clamp,
    "Conv": _conv,
    "Div": torch.div,
    "Flatten": lambda x, axis=1: torch.flatten(x, axis),
    "GatherElements": lambda x, index, axis=0: torch.gather(x, axis, index),
    "Gemm": lambda x, weight, bias, transB=0: f.linear(x, weight if transB else weight.T, bias),  # noqa: N803
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "Identity": lambda x: x,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "Sub": torch.sub,
    "TopK": _top_k,
    "Transpose": lambda x, perm: x.permute(*perm),
}


def _on_gpu(array: DeviceArray) -> torch.Tensor:
    return torch.as_tensor(array, device="cuda")


def _on_host(array: DeviceArray) -> torch.Tensor:
    count = array.nbytes
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(array.pointer))
    return torch.from_numpy(flat.view(array.dtype).reshape(array.shape))


@contextmanager
def _nothing() -> Iterator[None]:
    yield
