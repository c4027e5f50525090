"""ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess import Definition
from onestream.serving.engine.quantization import Quantization, read_quantization
from onestream.serving.engine.stamp import read_stamp


class OnnxRuntimeEngine:
    """ONNX Runtime on the CPU, one image after the other.

    ``model`` is a path or a serialized model. ``threads`` are those of one run; 0 is one per core. A batch is not run
    at once: one image's activations fit the cache and eight do not, and so every image gets to the last bit the result
    that it gets alone.
    """

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
        self._outputs: list[str] = [output.name for output in self._session.get_outputs()]

    @property
    def definition(self) -> Definition | None:
        """The stamped definition; None where the file carries none."""
        return read_stamp(self._session.get_modelmeta().custom_metadata_map, where="the ONNX file")

    @property
    def quantization(self) -> Quantization | None:
        """What int8 costs and gains; None for a network in float32."""
        return read_quantization(self._session.get_modelmeta().custom_metadata_map)

    @property
    def output_names(self) -> list[str]:
        """In the network's order."""
        return self._outputs

    def run(self, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """See ``onestream.serving.engine.Engine.run``."""
        rows = [self._session.run(self._outputs, {self._input: pixels[i : i + 1]}) for i in range(len(pixels))]
        columns = rows[0] if len(rows) == 1 else [np.concatenate(column) for column in zip(*rows, strict=True)]
        return dict(zip(self._outputs, columns, strict=True))

    def run_together(self, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """The same as one batched execution, which tells whether the network takes a batch."""
        return dict(zip(self._outputs, self._session.run(self._outputs, {self._input: pixels}), strict=True))
