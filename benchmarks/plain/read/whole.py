"""Encoded image to lines of text, with rapidocr."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from PIL import Image
from rapidocr import RapidOCR


class TritonPythonModel:
    """One image after the other."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open rapidocr; the parameter ``threads`` is 0 for ONNX Runtime's default."""
        folder = Path(args["model_repository"])
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        for part in ("Det", "Cls", "Rec"):
            settings[f"{part}.model_path"] = str(folder / args["model_version"] / f"{part}.onnx")
        threads = int(json.loads(args["model_config"])["parameters"]["threads"]["string_value"])
        settings["EngineConfig.onnxruntime.intra_op_num_threads"] = threads or -1
        self.reader = RapidOCR(params=settings)
        # It loads a network when it is first needed, and keeps these options for the calls that come.
        blank = np.zeros((48, 320, 3), np.uint8)
        self.reader(blank, use_det=False)
        self.reader(blank, use_det=True)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Read the image of each request."""
        responses = []
        for request in requests:
            encoded = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()[0].tobytes()
            output = self.reader(encoded)
            tensors = [pb_utils.Tensor(name, value) for name, value in answer(output, encoded).items()]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses


def answer(output: Any, encoded: bytes) -> dict[str, npt.NDArray[Any]]:
    """What rapidocr found, each with a batch of 1; its fields are None where that is nothing."""
    texts = output.txts or ()
    width, height = Image.open(io.BytesIO(encoded)).size
    return {
        "quads": np.asarray(output.boxes if texts else [], np.float32).reshape(1, -1, 4, 2),
        "texts": np.array([text.encode() for text in texts], object)[None],
        "scores": np.asarray(output.scores if texts else [], np.float32)[None],
        "image_size": np.array([[height, width]], np.int32),
    }
