"""Encoded image to float32 NCHW, with OpenCV."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

SIDE = 300


class TritonPythonModel:
    """One image after the other."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode and resize the image of each request; its size goes along, since boxes are scaled by it later."""
        responses = []
        for request in requests:
            encoded = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            network_input, image_size = preprocess(encoded[0])
            tensors = [pb_utils.Tensor("network_input", network_input), pb_utils.Tensor("image_size", image_size)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses


def preprocess(encoded: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Bytes of an image file to float32 (1, 3, 300, 300) in 0 to 255, and (1, 2): its height and width."""
    image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    resized = cv2.cvtColor(cv2.resize(image, (SIDE, SIDE)), cv2.COLOR_BGR2RGB)
    network_input = np.ascontiguousarray(resized.transpose(2, 0, 1)[None], np.float32)
    return network_input, np.array([image.shape[:2]], np.int32)
