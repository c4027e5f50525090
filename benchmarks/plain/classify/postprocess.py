"""Logits to the five best classes, with NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

TOP_K = 5


class TritonPythonModel:
    """Softmax and sort."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the names of the classes."""
        labels = Path(args["model_repository"]) / "labels.txt"
        self.names = np.array([line.encode() for line in labels.read_text(encoding="utf-8").splitlines()], object)

    def execute(self, requests: list[Any]) -> list[Any]:
        """The best classes of each request."""
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores = exponentials / exponentials.sum(axis=1, keepdims=True)
            class_ids = np.argsort(-scores, axis=1)[:, :TOP_K].astype(np.int32)
            tensors = [
                pb_utils.Tensor("scores", np.take_along_axis(scores, class_ids, axis=1)),
                pb_utils.Tensor("class_ids", class_ids),
                pb_utils.Tensor("labels", self.names[class_ids]),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
