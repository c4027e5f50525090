"""Encoded image to normalized float32 NCHW, with Pillow and NumPy."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from PIL import Image

RESIZE = 256
CROP = 224


class TritonPythonModel:
    """One image after the other."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode, resize, crop and normalize the image of each request."""
        responses = []
        for request in requests:
            encoded = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            network_input = preprocess(encoded.tobytes())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("network_input", network_input)]))
        return responses


def preprocess(encoded: bytes) -> npt.NDArray[np.float32]:
    """Bytes of an image file to float32 (1, 3, 224, 224)."""
    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    shorter = min(image.size)
    image = image.resize((image.width * RESIZE // shorter, image.height * RESIZE // shorter), Image.Resampling.BILINEAR)
    left, top = round((image.width - CROP) / 2), round((image.height - CROP) / 2)
    image = image.crop((left, top, left + CROP, top + CROP))
    pixels = (np.asarray(image, np.float32) - 127.0) / 128.0
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
