"""ONNX Runtime with CUDA on the caller's stream: what runs networks where there is no TensorRT, or sizes vary."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np

from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.preprocess.errors import BackendMissing
from onestream.serving.engine.base import DeviceEngine, DeviceSession, EngineTensor, FreeSession
from onestream.serving.engine.cuda_graphs import Replayed, batch_sizes, next_size
from onestream.serving.engine.served import DOOR, load_served, outputs, tensors
from onestream.serving.errors import BadNetwork

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "CUDAExecutionProvider"
_DEVICE = "cuda"
_INSTALL = "pip uninstall onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'"


class OnnxCudaEngine(DeviceEngine):
    """A served network, ``model``, with ONNX Runtime's CUDA provider. ``tf32`` is that of ``PlanOptions.precision``.

    Batches are replayed as CUDA graphs where all of the network runs on the GPU.

    The provider takes its stream when a network is loaded, so each session holds the weights once more: prefer
    TensorRT for many streams. Raises ``BackendMissing`` where ONNX Runtime comes without CUDA, ``BadNetwork`` where the
    network is none that this can serve.
    """

    def __init__(self, model: bytes, device: Device, *, max_batch_size: int, tf32: bool = False) -> None:
        _require_cuda()
        self.max_batch_size = max_batch_size
        self._model = model
        self._device = device
        self._tf32 = tf32
        self.inputs, self.outputs = tensors(load_served(model))

    def open(self, stream: Stream) -> OnnxCudaSession:
        """See ``DeviceEngine.open``; it loads the network on this stream."""
        return OnnxCudaSession(
            self._model, self.inputs, self.outputs, self.max_batch_size, self._device, stream, tf32=self._tf32
        )


class OnnxCudaSession(DeviceSession):
    """See ``DeviceSession``."""

    def __init__(
        self,
        model: bytes,
        inputs: tuple[EngineTensor, ...],
        outputs: tuple[EngineTensor, ...],
        max_batch_size: int,
        device: Device,
        stream: Stream,
        *,
        tf32: bool,
    ) -> None:
        self._load = partial(_OnStream, model, device.index, stream.handle, tf32=tf32)
        self._on_stream: _OnStream | None = self._load(recorded=True)
        self._replayed = Replayed(stream.handle) if self._on_stream.recorded else None
        self._max_batch_size = max_batch_size
        self._sizes = batch_sizes(max_batch_size)
        self._size: int | None = None
        """Of the batch before."""
        self.inputs = {each.name: stream.allocate((max_batch_size, *each.dims), each.dtype) for each in inputs}
        self.outputs = {each.name: stream.allocate((max_batch_size, *each.dims), each.dtype) for each in outputs}
        # One per batch size: a binding holds addresses and shapes, no memory.
        self._bindings: dict[int, onnxruntime.IOBinding] = {}

    def enqueue(self, batch: int) -> None:
        """See ``DeviceSession.enqueue``."""
        if not 1 <= batch <= self._max_batch_size:
            raise ValueError(f"got a batch of {batch}; allowed: 1 to {self._max_batch_size}")
        if self._on_stream is None:
            raise BadNetwork("the session was closed")
        if self._replayed is None:
            self._on_stream.run(self._binding(batch, self._on_stream))
            return
        size = next_size(batch, self._sizes)
        run = partial(self._on_stream.run, self._binding(size, self._on_stream))
        if size != self._size:
            # A convolution keeps cuDNN's kernels of one size only: a recording of the size before would launch kernels
            # that are gone. The second run of a size allocates too, so the third is recorded
            # (min_num_runs_before_cuda_graph_capture_ in cuda_execution_provider.h).
            self._replayed.close()
            self._size = size
            run()
            return
        self._replayed.queue(size, run)
        if self._replayed.refused:
            # Loaded to be recorded, such a network waits in each run for copies of its own from the host.
            self._forget()
            self._on_stream = self._load(recorded=False)

    def close(self) -> None:
        """Release the network of this session; the stream must have passed all batches."""
        self._forget()
        self._on_stream = None

    def _forget(self) -> None:
        if self._replayed is not None:
            self._replayed.close()
        self._replayed = None
        self._bindings.clear()

    def _binding(self, batch: int, on_stream: _OnStream) -> onnxruntime.IOBinding:
        if batch not in self._bindings:
            binding = on_stream.binding({name: array.first(batch) for name, array in self.inputs.items()})
            for name, array in self.outputs.items():
                binding.bind_output(name, **on_stream.place(array.first(batch)))
            self._bindings[batch] = binding
        return self._bindings[batch]


class OnnxCudaFreeSession(FreeSession):
    """See ``FreeSession``. ONNX Runtime allocates the outputs, whose sizes it knows when it has queued the network.

    Its memory grows to what the largest pixels need, and stays. Raises as ``OnnxCudaEngine``.
    """

    def __init__(self, model: bytes, stream: Stream, *, tf32: bool = False) -> None:
        _require_cuda()
        self._dtypes = {each.name: np.dtype(each.dtype) for each in outputs(load_served(model, sizes_vary=True))}
        self._stream_handle = stream.handle
        self._on_stream: _OnStream | None = _OnStream(
            model, stream.device.index, stream.handle, tf32=tf32, sizes_vary=True
        )

    def enqueue(self, pixels: DeviceArray) -> dict[str, DeviceArray]:
        """See ``FreeSession.enqueue``."""
        if self._on_stream is None:
            raise BadNetwork("the session was closed")
        # A binding that is used again would give outputs of the size before.
        binding = self._on_stream.binding({DOOR: pixels})
        for name in self._dtypes:
            binding.bind_output(name, _DEVICE, self._on_stream.device_id)
        self._on_stream.run(binding)
        return {
            name: DeviceArray(value.data_ptr(), tuple(value.shape()), dtype, self._stream_handle, value)
            for (name, dtype), value in zip(self._dtypes.items(), binding.get_outputs(), strict=True)
        }

    def close(self) -> None:
        """See ``FreeSession.close``."""
        self._on_stream = None


class _OnStream:
    """A network that ONNX Runtime loaded on a stream of a GPU, and that it runs there without a wait.

    ``recorded``: its runs are to be recorded as CUDA graphs; it is False afterwards where a part of the network would
    run on the CPU.
    """

    def __init__(
        self,
        model: bytes,
        device_id: int,
        stream_handle: int,
        *,
        tf32: bool,
        sizes_vary: bool = False,
        recorded: bool = False,
    ) -> None:
        import onnxruntime

        self.device_id = device_id
        # CUDA and cuDNN from the packages beside it, where the system has none. It prints what it does not find.
        with redirect_stdout(StringIO()):
            onnxruntime.preload_dlls()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # The pattern of each size would be kept for ever.
        options.enable_mem_pattern = not sizes_vary
        given = provider_options(device_id, stream_handle, tf32=tf32)
        self.recorded = recorded
        if recorded:
            try:
                self._session = onnxruntime.InferenceSession(
                    model, options, providers=[(_PROVIDER, given | {"enable_cuda_graph": "1"})]
                )
            except (
                Exception
            ):  # its exceptions share no public base class; loaded otherwise, the network says what is wrong
                self.recorded = False
        if not self.recorded:
            self._session = onnxruntime.InferenceSession(model, options, providers=[(_PROVIDER, given)])
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
        if self.recorded:
            # ONNX Runtime's own graphs wait after every replay and stop other threads' allocations while they are
            # recorded. With them enabled, and left out of each run, it keeps from the stream what must not be replayed.
            self._run_options.add_run_config_entry("gpu_graph_id", "-1")

    def binding(self, inputs: Mapping[str, DeviceArray]) -> onnxruntime.IOBinding:
        """A binding with its inputs, and no outputs."""
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, **self.place(array))
        return binding

    def run(self, binding: onnxruntime.IOBinding) -> bool:
        """Queue the network; returns True, as ``Replayed.queue`` takes it."""
        self._session.run_with_iobinding(binding, self._run_options)
        return True

    def place(self, array: DeviceArray) -> dict[str, object]:
        """What a binding wants to know of memory."""
        return {
            "device_type": _DEVICE,
            "device_id": self.device_id,
            "element_type": array.dtype.type,
            "shape": array.shape,
            "buffer_ptr": array.pointer,
        }


def provider_options(device_id: int, stream: int, *, tf32: bool = False) -> dict[str, str]:
    """Options of the CUDA provider (onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html).

    Everything goes to ``stream``; the others are ``kernel_options``.
    """
    return {
        "device_id": str(device_id),
        "user_compute_stream": str(stream),
        "do_copy_in_default_stream": "1",
        **kernel_options(tf32=tf32),
    }


def kernel_options(*, tf32: bool) -> dict[str, str]:
    """Options of the CUDA provider that choose kernels, in this process and in Triton's onnxruntime backend.

    float32 is computed as float32 unless ``tf32``; kernels are chosen by rule, since the default search times them anew
    for every size of an input, in the middle of serving.
    """
    return {"use_tf32": str(int(tf32)), "cudnn_conv_algo_search": "HEURISTIC"}


def _require_cuda() -> None:
    """Raise ``BackendMissing`` where ONNX Runtime comes without CUDA."""
    import onnxruntime

    if _PROVIDER not in onnxruntime.get_available_providers():
        raise BackendMissing(
            f"the installed ONNX Runtime {onnxruntime.__version__} has no CUDA: {_INSTALL}; "
            "or choose serving.gpu.engine: tensorrt"
        )
