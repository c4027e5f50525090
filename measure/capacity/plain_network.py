"""The network as it was exported, float32 in and without the definition's steps, as a Triton model of few lines.

A detector keeps the nodes that make candidates of its outputs, so that nothing of that is left to NumPy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onestream.serving.built.triton_config import to_text
from onestream.serving.engine.served import without_door

NAME = "plain_network"
_MODEL = "from onestream.measure.capacity.plain_network import PlainNetwork as TritonPythonModel\n"


def install(served: onnx.ModelProto, folder: Path, *, instances: int, max_batch_size: int) -> None:
    """Write the model ``plain_network`` into a repository: one thread an instance, dynamic batching."""
    from tritonclient.grpc import model_config_pb2 as proto

    plain = without_door(served)
    config = proto.ModelConfig(name=NAME, backend="python", max_batch_size=max_batch_size)
    given = plain.graph.input[0]
    config.input.add(name=given.name, data_type=proto.TYPE_FP32, dims=_dims(given))
    for output in plain.graph.output:
        config.output.add(name=output.name, data_type=_data_type(output), dims=_dims(output))
    config.dynamic_batching.SetInParent()
    config.instance_group.add(count=instances, kind=proto.ModelInstanceGroup.KIND_CPU)
    version = folder / NAME / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(_MODEL)
    (version / "model.onnx").write_bytes(plain.SerializeToString())
    (version.parent / "config.pbtxt").write_text(to_text(config, source="the benchmark"))


def _data_type(value: Any) -> Any:
    from tritonclient.grpc import model_config_pb2 as proto

    return proto.TYPE_INT32 if value.type.tensor_type.elem_type == onnx.TensorProto.INT32 else proto.TYPE_FP32


def _dims(value: Any) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]]


class PlainNetwork:
    """One run of ONNX Runtime for all requests of a batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._outputs = [output["name"] for output in json.loads(args["model_config"])["output"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Join the inputs, run, and give each request its rows."""
        import triton_python_backend_utils as pb_utils

        inputs = [pb_utils.get_input_tensor_by_name(request, self._input).as_numpy() for request in requests]
        outputs = self._session.run(self._outputs, {self._input: np.concatenate(inputs)})
        ends = np.cumsum([len(one) for one in inputs])[:-1]
        parts = zip(*(np.split(output, ends) for output in outputs), strict=True)
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, np.ascontiguousarray(part))
                    for name, part in zip(self._outputs, of_request, strict=True)
                ]
            )
            for of_request in parts
        ]
