"""ONNX Runtime with CUDA on the caller's stream: what runs networks where there is no TensorRT."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.preprocess.errors import BackendMissing
from onestream.serving.engine.base import DeviceEngine, DeviceSession, EngineTensor
from onestream.serving.engine.served import load_served, tensors
from onestream.serving.errors import BadNetwork

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "CUDAExecutionProvider"
_INSTALL = "pip uninstall onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'"


class OnnxCudaEngine(DeviceEngine):
    """A served network, ``model``, with ONNX Runtime's CUDA provider. ``tf32`` is that of ``PlanOptions.precision``.

    The provider takes its stream when a network is loaded, so each session holds the weights once more: prefer
    TensorRT for many streams. Raises ``BackendMissing`` where ONNX Runtime comes without CUDA, ``BadNetwork`` where the
    network is none that this can serve.
    """

    def __init__(self, model: bytes, device: Device, *, max_batch_size: int, tf32: bool = False) -> None:
        import onnxruntime

        if _PROVIDER not in onnxruntime.get_available_providers():
            raise BackendMissing(
                f"the installed ONNX Runtime {onnxruntime.__version__} has no CUDA: {_INSTALL}; "
                "or choose serving.gpu.engine: tensorrt"
            )
        self.max_batch_size = max_batch_size
        self._model = model
        self._device = device
        self._tf32 = tf32
        self.input, self.outputs = tensors(load_served(model))

    def open(self, stream: Stream) -> OnnxCudaSession:
        """See ``DeviceEngine.open``; it loads the network on this stream."""
        return OnnxCudaSession(
            self._model, self.input, self.outputs, self.max_batch_size, self._device, stream, tf32=self._tf32
        )


class OnnxCudaSession(DeviceSession):
    """See ``DeviceSession``."""

    def __init__(
        self,
        model: bytes,
        pixels: EngineTensor,
        outputs: tuple[EngineTensor, ...],
        max_batch_size: int,
        device: Device,
        stream: Stream,
        *,
        tf32: bool,
    ) -> None:
        import onnxruntime

        # CUDA and cuDNN from the packages beside it, where the system has none. It prints what it does not find.
        with redirect_stdout(StringIO()):
            onnxruntime.preload_dlls()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            model, options, providers=[(_PROVIDER, provider_options(device.index, stream.handle, tf32=tf32))]
        )
        # It falls back to the CPU in silence where a CUDA library is missing or too old.
        if self._session.get_providers()[0] != _PROVIDER:
            raise BackendMissing(
                f"ONNX Runtime {onnxruntime.__version__} cannot load its CUDA provider: it lacks the CUDA and cuDNN "
                "that it was built for, which pip install 'onnxruntime-gpu[cuda,cudnn]' brings"
            )
        self._session.disable_fallback()
        self._run_options = onnxruntime.RunOptions()
        # Without this a run ends with cudaStreamSynchronize.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._device_id = device.index
        self._max_batch_size = max_batch_size
        self._input_name = pixels.name
        self.input = stream.allocate((max_batch_size, *pixels.dims), pixels.dtype)
        self.outputs = {each.name: stream.allocate((max_batch_size, *each.dims), each.dtype) for each in outputs}
        # One per batch size, at most ``max_batch_size``: a binding holds addresses and shapes, no memory.
        self._bindings: dict[int, onnxruntime.IOBinding] = {}

    def enqueue(self, batch: int) -> None:
        """See ``DeviceSession.enqueue``."""
        if not 1 <= batch <= self._max_batch_size:
            raise ValueError(f"got a batch of {batch}; allowed: 1 to {self._max_batch_size}")
        if self._session is None:
            raise BadNetwork("the session was closed")
        if batch not in self._bindings:
            binding = self._session.io_binding()
            binding.bind_input(self._input_name, **self._place(self.input.first(batch)))
            for name, array in self.outputs.items():
                binding.bind_output(name, **self._place(array.first(batch)))
            self._bindings[batch] = binding
        self._session.run_with_iobinding(self._bindings[batch], self._run_options)

    def close(self) -> None:
        """Release the network of this session; the stream must have passed all batches."""
        self._bindings.clear()
        self._session = None

    def _place(self, array: DeviceArray) -> dict[str, object]:
        return {
            "device_type": "cuda",
            "device_id": self._device_id,
            "element_type": array.dtype.type,
            "shape": array.shape,
            "buffer_ptr": array.pointer,
        }


def provider_options(device_id: int, stream: int, *, tf32: bool = False) -> dict[str, str]:
    """Options of the CUDA provider (onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html).

    Everything goes to ``stream``; float32 is computed as float32 unless ``tf32``; kernels are chosen by rule, since the
    default search times them anew for every batch size, in the middle of serving.
    """
    return {
        "device_id": str(device_id),
        "user_compute_stream": str(stream),
        "do_copy_in_default_stream": "1",
        "use_tf32": str(int(tf32)),
        "cudnn_conv_algo_search": "HEURISTIC",
    }
