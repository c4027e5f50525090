"""The network, with ONNX Runtime on the CPU."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One run of the network for all requests of a batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network; the parameter ``threads`` is 0 for ONNX Runtime's default."""
        options = onnxruntime.SessionOptions()
        threads = int(json.loads(args["model_config"])["parameters"]["threads"]["string_value"])
        if threads:
            options.intra_op_num_threads = threads
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.input_name = self.session.get_inputs()[0].name
        self.output_names = [output.name for output in self.session.get_outputs()]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Join the inputs, run, and give each request its rows."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "network_input").as_numpy() for request in requests]
        outputs = self.session.run(None, {self.input_name: np.concatenate(inputs)})
        ends = np.cumsum([len(one) for one in inputs])[:-1]
        parts = zip(*(np.split(output, ends) for output in outputs), strict=True)
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, np.ascontiguousarray(value))
                    for name, value in zip(self.output_names, values, strict=True)
                ]
            )
            for values in parts
        ]
