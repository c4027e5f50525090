"""Networks on a CPU: the interface of their engines, and ONNX Runtime, which every installation has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from onestream.serving.engine.quantization import Quantization, Rounding, read_price, this_processor
from onestream.serving.engine.stamp import read_stamp

if TYPE_CHECKING:
    from onestream.preprocess import Definition

_VNNI = frozenset({"avx_vnni", "avx512_vnni"})
"""Instruction sets that add products of uint8 and int8 in 32 bits."""

Inputs = Mapping[str, npt.NDArray[Any]]
"""A network's inputs by name, each with the batch first: ``pixels``, uint8 (batch, height, width, channels), and those
that the pipeline file names beside it (``onestream.serving.graph.network_inputs``)."""


class CpuEngine(ABC):
    """A served network (``onestream.serving.graph.onnx_graph``) on a CPU, one image after the other.

    A batch is not run at once: one image's activations fit the cache and eight do not, and so every image gets to the
    last bit the result that it gets alone. Threads may share an engine.

    Attributes:
        input_names, output_names: in the network's order.
        metadata: that of the ONNX file.
        computes_in: in which it computes what is float32 in the file.
    """

    input_names: list[str]
    output_names: list[str]
    metadata: Mapping[str, str]
    computes_in: Literal["float32", "bf16"] = "float32"

    @abstractmethod
    def __init__(self, model: Path | bytes, *, threads: int) -> None:
        """Load a path or a serialized model. ``threads`` are those of one run; 0 is one per core."""

    @property
    def definition(self) -> Definition | None:
        """The stamped definition; None where the file carries none."""
        return read_stamp(self.metadata, where="the ONNX file")

    @property
    def price(self) -> Quantization | Rounding | None:
        """What int8 or bfloat16 costs and gains; None for a network in float32."""
        return read_price(self.metadata)

    def run(self, inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
        """Outputs by name, each with the batch of the inputs."""
        count = len(next(iter(inputs.values())))
        rows = [self.run_one({name: value[i : i + 1] for name, value in inputs.items()}) for i in range(count)]
        columns = rows[0] if len(rows) == 1 else [np.concatenate(column) for column in zip(*rows, strict=True)]
        return dict(zip(self.output_names, columns, strict=True))

    @abstractmethod
    def run_one(self, inputs: Inputs) -> list[npt.NDArray[Any]]:
        """The outputs for one image, a batch of 1, in the order of ``output_names``."""


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
        if not _VNNI.intersection(this_processor().instruction_sets):
            # Sums of uint8 by int8 overflow 16 bits there and are cut off. With VNNI this would take twice as long.
            options.add_session_config_entry("session.x64quantprecision", "1")
        source = model if isinstance(model, bytes) else str(model)
        self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.input_names = [value.name for value in self._session.get_inputs()]
        self.output_names = [output.name for output in self._session.get_outputs()]
        self.metadata = self._session.get_modelmeta().custom_metadata_map

    def run_one(self, inputs: Inputs) -> list[npt.NDArray[Any]]:
        """See ``CpuEngine.run_one``."""
        outputs: list[npt.NDArray[Any]] = self._session.run(self.output_names, inputs)
        return outputs

    def run_together(self, inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
        """The outputs of a batch as one execution, which tells whether the network takes a batch."""
        return dict(zip(self.output_names, self.run_one(inputs), strict=True))
