"""TensorRT on the caller's stream: addresses set once, one execution context per batch size, each replayed.

``execute_async_v3`` queues and returns. It would wait on the default stream, which nobody can pass here, and fan out to
auxiliary streams, of which plans built here have none (``onestream.serving.engine.plan``).
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.serving.engine.base import DeviceEngine, DeviceSession, EngineTensor
from onestream.serving.engine.cache import read_plan
from onestream.serving.engine.cuda_graphs import Replayed, batch_sizes, nearest, next_size
from onestream.serving.engine.library import IS_RTX, LOG, TITLE, trt
from onestream.serving.errors import BadPlan
from onestream.wire.tensor_names import PIXELS


class TensorRtEngine(DeviceEngine):
    """A plan (``serving.engine.cache``) loaded on a GPU; its weights are there once, whatever the number of sessions.

    Batch sizes are replayed as CUDA graphs, which spares the launches of the single kernels. Raises ``BadPlan`` where
    the plan does not belong to this GPU and TensorRT, or cannot be loaded.
    """

    def __init__(self, plan: Path, device: Device) -> None:
        key, content = read_plan(plan, gpu=device.kind)
        LOG.take()
        try:
            self._runtime = trt.Runtime(LOG)
        except TypeError:  # what its bindings make of a null pointer
            raise BadPlan(f"{TITLE} cannot run here: {LOG.take()}") from None
        if key.version_compatible:
            # Such a plan carries the part of TensorRT that runs it. Its content was compared with its sidecar.
            self._runtime.engine_host_code_allowed = True
        engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise BadPlan(f"{TITLE} cannot load {plan.name}: {LOG.take()}")
        self._engine: trt.ICudaEngine | None = engine
        self._lock = threading.Lock()
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        tensors = {name: _describe(engine, name) for name in names}
        pixels = tensors.get(PIXELS)
        if pixels is None or PIXELS not in inputs or pixels.dtype != "uint8" or len(pixels.dims) != 3:
            raise BadPlan(f"{plan.name} takes {', '.join(inputs)}; expected {PIXELS}, a uint8 image tensor")
        # The pixels first, whatever their place in the plan.
        self.inputs = tuple(tensors.pop(name) for name in sorted(inputs, key=lambda name: name != PIXELS))
        self.outputs = tuple(tensors.values())
        varying = [output.name for output in self.outputs if any(dim < 0 for dim in output.dims)]
        if varying:
            raise BadPlan(f"{plan.name}: output {', '.join(varying)} has a size that depends on the image")
        self.max_batch_size = int(engine.get_tensor_profile_shape(PIXELS, 0)[2][0])

    def open(self, stream: Stream) -> TensorRtSession:
        """See ``DeviceEngine.open``."""
        if self._engine is None:
            raise BadPlan("the engine was closed")
        return TensorRtSession(self._engine, self.inputs, self.outputs, self.max_batch_size, stream, lock=self._lock)

    def close(self) -> None:
        """Let go of the network; open sessions keep it until they are closed too."""
        self._engine = None


class TensorRtSession(DeviceSession):
    """See ``DeviceSession``. A batch runs as one of the next of ``batch_sizes``, whose graph is replayed.

    Each size has an execution context of its own, a few MB on the GPU, over the same memory. ``lock`` is one for all
    sessions of an engine.
    """

    def __init__(
        self,
        engine: trt.ICudaEngine,
        inputs: tuple[EngineTensor, ...],
        outputs: tuple[EngineTensor, ...],
        max_batch_size: int,
        stream: Stream,
        *,
        lock: threading.Lock,
    ) -> None:
        self._engine = engine
        self._lock = lock
        self._handle = stream.handle
        self._max_batch_size = max_batch_size
        self.inputs = {each.name: stream.allocate((max_batch_size, *each.dims), each.dtype) for each in inputs}
        self.outputs = {each.name: stream.allocate((max_batch_size, *each.dims), each.dtype) for each in outputs}
        self._addresses: dict[str, DeviceArray] = self.inputs | self.outputs
        self._tensors = inputs
        self._workspace = stream.allocate((int(engine.device_memory_size_v2),), np.uint8)
        self._sizes = batch_sizes(max_batch_size)
        profiles = range(engine.num_optimization_profiles)
        self._tuned = tuple(int(engine.get_tensor_profile_shape(PIXELS, one)[1][0]) for one in profiles)
        self._contexts: dict[int, trt.IExecutionContext] = {}
        self._replayed: Replayed | None = Replayed(stream.handle)

    def enqueue(self, batch: int) -> None:
        """See ``DeviceSession.enqueue``."""
        if not 1 <= batch <= self._max_batch_size:
            raise ValueError(f"got a batch of {batch}; allowed: 1 to {self._max_batch_size}")
        if self._replayed is None:
            raise BadPlan("the session was closed")
        size = next_size(batch, self._sizes)
        is_new = size not in self._contexts
        if is_new:
            self._contexts[size] = self._new_context(size)
        context = self._contexts[size]
        if not self._replayed.queue(size, lambda: context.execute_async_v3(self._handle)):
            raise BadPlan(f"{TITLE} cannot queue the network: {LOG.take()}")
        if is_new:
            # What was said of a recording that was refused is no reason for anything that fails later.
            LOG.take()

    def close(self) -> None:
        """Release the graphs and the execution contexts; the stream must have passed all batches."""
        if self._replayed is not None:
            self._replayed.close()
        self._replayed = None
        self._contexts.clear()

    def _new_context(self, size: int) -> trt.IExecutionContext:
        """A context for one batch size. A graph stands for its state, which therefore never changes."""
        # NVIDIA promises that contexts of one engine run in parallel, not that they are made so.
        with self._lock:
            context = _context_without_memory(self._engine)
        if context is None:
            raise BadPlan(f"{TITLE} cannot make an execution context: {LOG.take()}")
        context.set_device_memory(self._workspace.pointer, self._workspace.nbytes)
        profile = nearest(size, self._tuned)
        if profile and not context.set_optimization_profile_async(profile, self._handle):
            raise BadPlan(f"{TITLE} refuses optimization profile {profile}: {LOG.take()}")
        for name, array in self._addresses.items():
            if not context.set_tensor_address(name, array.pointer):
                raise BadPlan(f"{TITLE} refuses the memory of {name!r}: {LOG.take()}")
        for each in self._tensors:
            if not context.set_input_shape(each.name, (size, *each.dims)):
                raise BadPlan(f"{TITLE} refuses a batch of {size}: {LOG.take()}")
        return context


def _context_without_memory(engine: trt.ICudaEngine) -> trt.IExecutionContext | None:
    strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
    if not IS_RTX:
        return engine.create_execution_context(strategy)
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(strategy)
    # Otherwise kernels for a shape are compiled beside the first runs, and a recording keeps the slow ones.
    config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    return engine.create_execution_context(config)


def _describe(engine: trt.ICudaEngine, name: str) -> EngineTensor:
    dtype = np.dtype(trt.nptype(engine.get_tensor_dtype(name))).name
    return EngineTensor(name, dtype, tuple(int(dim) for dim in tuple(engine.get_tensor_shape(name))[1:]))
