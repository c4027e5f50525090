"""ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.serving.engine.base import CpuEngine


class OnnxRuntimeEngine(CpuEngine):
    """ONNX Runtime on the CPU."""

    def __init__(self, model: Path | bytes, *, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Waiting threads that spin take the core from the process that decodes the next image.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        source = model if isinstance(model, bytes) else str(model)
        self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self.output_names = [output.name for output in self._session.get_outputs()]
        self.metadata = self._session.get_modelmeta().custom_metadata_map

    def run_one(self, pixels: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """See ``CpuEngine.run_one``."""
        outputs: list[npt.NDArray[Any]] = self._session.run(self.output_names, {self._input: pixels})
        return outputs

    def run_together(self, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """The outputs of a batch as one execution, which tells whether the network takes a batch."""
        return dict(zip(self.output_names, self.run_one(pixels), strict=True))
