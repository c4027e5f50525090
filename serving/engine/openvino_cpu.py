"""OpenVINO on the CPU: faster than ONNX Runtime on some processors, in bfloat16 on those that compute with it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy.typing as npt

from onestream.preprocess.errors import BackendMissing
from onestream.serving.engine.cpu import CpuEngine, Inputs
from onestream.serving.engine.quantization import COMPUTED_IN
from onestream.serving.errors import BadNetwork
from onestream.wire.install import install_command

_ABOUT_ITSELF = ("Exception from", "Check '", "FrontEnd API", "To facilitate")
"""How lines of its errors begin that say nothing of the network."""
_MOST_SAID = 300
_FIRST_USE = threading.Lock()


def import_openvino() -> Any:
    """The package, without its telemetry, which forks this process to tell a server of Google's that it was imported.

    Raises ``BackendMissing`` where it is not installed.
    """
    # OpenVINO has a stub for where that package cannot be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino  # type: ignore[import-untyped]
    except ImportError as error:
        raise BackendMissing(f"running a network by OpenVINO needs it: {install_command('openvino')}") from error
    with _FIRST_USE:
        # Where two threads are the first to exchange arrays with it, each waits for a lock that the other holds.
        openvino.Type.f32.to_dtype()
    return openvino


class OpenVinoEngine(CpuEngine):
    """OpenVINO on the CPU, in bfloat16 where the file says so and the processor has that.

    Its sums are in another order than ONNX Runtime's.

    Raises ``BackendMissing`` where it is not installed, ``BadNetwork`` for a network that it does not take.
    """

    def __init__(self, model: Path | bytes, *, threads: int) -> None:
        openvino = import_openvino()
        try:
            self._compiled = self._compile(openvino.Core(), model, threads)
        except RuntimeError as error:
            lines = [line for line in str(error).splitlines() if not line.startswith(_ABOUT_ITSELF)]
            said = " ".join(lines).strip()[:_MOST_SAID]
            raise BadNetwork(
                f"OpenVINO does not take the network: {said}; serving.cpu.engine onnxruntime may"
            ) from None
        self.input_names = [value.any_name for value in self._compiled.inputs]
        self.output_names = [output.any_name for output in self._compiled.outputs]
        self._idle: list[Any] = []

    def _compile(self, core: Any, model: Path | bytes, threads: int) -> Any:
        read = core.read_model(model)
        self.metadata = {
            key: str(read.get_rt_info(["framework", key]).value) for key in read.get_rt_info(["framework"]).value
        }
        own = {value.any_name: list(value.partial_shape)[1:] for value in read.inputs}
        if all(side.is_static for sides in own.values() for side in sides):
            # It plans memory and kernels for one image, which takes a tenth less time than any batch.
            read.reshape({name: [1, *sides] for name, sides in own.items()})
        if self.metadata.get(COMPUTED_IN) == "bf16" and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            # Other processors would emulate it, slowly.
            self.computes_in = "bf16"
        options = {
            "INFERENCE_PRECISION_HINT": "bf16" if self.computes_in == "bf16" else "f32",
            "INFERENCE_NUM_THREADS": threads or os.cpu_count() or 1,
            "NUM_STREAMS": 1,
            # Processes that pin their threads choose the same cores.
            "ENABLE_CPU_PINNING": False,
            "ENABLE_HYPER_THREADING": True,
        }
        return core.compile_model(read, "CPU", options)

    def run_one(self, inputs: Inputs) -> list[npt.NDArray[Any]]:
        """See ``CpuEngine.run_one``."""
        # A request is for one thread at a time; they end with the engine, not with the threads.
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        outputs = request.infer(dict(inputs), share_inputs=True)
        self._idle.append(request)
        return [outputs[index] for index in range(len(self.output_names))]
