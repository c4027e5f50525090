"""The engines: what the rest of the code asks of each, and how it is opened. An engine is a class and a row here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from onestream.preprocess import Definition, StampMismatch
from onestream.serving.engine.base import DeviceEngine, FreeSession
from onestream.serving.engine.cpu import CpuEngine
from onestream.serving.engine.network_files import NETWORK_FILE, float_beside
from onestream.serving.engine.stamp import check_same, read_stamp
from onestream.serving.errors import BadNetwork, BadPlan

if TYPE_CHECKING:
    from onestream.preprocess.cuda.device import Device, Stream
    from onestream.serving.pipeline import CpuEngineName, EngineName, GpuOptions, Precision

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OnTriton:
    """How Triton runs a network on a GPU, as in ``serving.built.triton_config.Placement``."""

    cuda_graphs: bool = False
    file: str = ""
    cuda_provider: dict[str, str] = field(default_factory=dict)


class EngineKind:
    """An engine. Python that it needs is imported when it is opened."""

    name: ClassVar[EngineName | CpuEngineName]
    title: ClassVar[str]
    distributions: ClassVar[tuple[str, ...]]
    """Names of the packages that hold its library, of which one is installed."""
    module: ClassVar[str]
    """What is imported of these."""


class OnCpu(EngineKind, ABC):
    """An engine that runs networks on a CPU."""

    in_bfloat16: ClassVar[bool] = False
    """Whether it computes in bfloat16 where the processor does."""

    @abstractmethod
    def on_cpu(self) -> type[CpuEngine]:
        """What opens a network."""


class OnGpu(EngineKind, ABC):
    """An engine that runs networks on a GPU. Its name is that of Triton's backend, too."""

    name: ClassVar[EngineName]
    needs_plan: ClassVar[bool]
    """Whether a network is first built for a kind of GPU (``cache.py``), which fixes the size of its pictures."""
    precisions: ClassVar[tuple[Precision, ...]]
    """Of networks on a GPU."""
    precisions_on_triton: ClassVar[tuple[Precision, ...]]
    """Those in which Triton's backend runs the file of the network that a build installs."""
    takes_text: ClassVar[bool]
    """Whether tensors of a network may hold strings, such as names of classes."""
    moves_bytes: ClassVar[bool]
    """Whether a network may give the uint8 that it takes."""

    @abstractmethod
    def on_triton(self, options: GpuOptions, *, in_int8: bool = False) -> OnTriton:
        """How Triton runs a network on a GPU; ``in_int8`` is that of the network beside it, for a CPU."""

    @abstractmethod
    def open(self, content: bytes, options: GpuOptions, device: Device, progress: Progress) -> DeviceEngine:
        """See ``open_engine``."""

    @abstractmethod
    def open_free(self, content: bytes, options: GpuOptions, stream: Stream) -> FreeSession:
        """See ``open_free_session``."""


class _TensorRt(OnGpu):
    """Plans, from the cache or built, which can take minutes."""

    name, needs_plan, takes_text, moves_bytes = "tensorrt", True, False, False
    precisions = precisions_on_triton = ("fp32", "tf32", "fp16", "int8")
    title, distributions, module = "TensorRT", ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"), "tensorrt"

    def on_triton(self, options: GpuOptions, *, in_int8: bool = False) -> OnTriton:  # noqa: ARG002
        return OnTriton(cuda_graphs=True)

    def open(self, content: bytes, options: GpuOptions, device: Device, progress: Progress) -> DeviceEngine:
        from onestream.serving.engine.cache import ensure_plan
        from onestream.serving.engine.plan import PlanOptions
        from onestream.serving.engine.tensorrt import TensorRtEngine

        wanted = PlanOptions(max_batch_size=options.max_batch_size, precision=options.network_precision)
        return TensorRtEngine(ensure_plan(content, wanted, gpu=device.kind, progress=progress), device)

    def open_free(self, content: bytes, options: GpuOptions, stream: Stream) -> FreeSession:  # noqa: ARG002
        free = names_of(lambda row: not row.needs_plan)
        raise BadPlan(
            f"a plan of TensorRT takes pictures of one size; serving.gpu.engine: {free} takes any, which a cascade "
            "needs on a GPU"
        )


class _OnnxRuntime(OnCpu, OnGpu):
    """The network as it is, on a CPU and, by the CUDA provider, on a GPU."""

    name, needs_plan, takes_text, moves_bytes = "onnxruntime", False, True, True
    precisions = ("fp32", "tf32", "fp16")
    precisions_on_triton = ("fp32", "tf32")
    title, distributions, module = "ONNX Runtime", ("onnxruntime", "onnxruntime-gpu"), "onnxruntime"

    def on_cpu(self) -> type[CpuEngine]:
        from onestream.serving.engine.cpu import OnnxRuntimeEngine

        return OnnxRuntimeEngine

    def on_triton(self, options: GpuOptions, *, in_int8: bool = False) -> OnTriton:
        from onestream.serving.engine.onnx_cuda import kernel_options

        file = float_beside(Path(NETWORK_FILE)).name if in_int8 else ""
        return OnTriton(file=file, cuda_provider=kernel_options(tf32=options.precision == "tf32"))

    def open(self, content: bytes, options: GpuOptions, device: Device, progress: Progress) -> DeviceEngine:  # noqa: ARG002
        from onestream.serving.engine.onnx_cuda import OnnxCudaEngine

        tf32 = options.precision == "tf32"
        network = self._in_precision(content, options)
        return OnnxCudaEngine(network, device, max_batch_size=options.max_batch_size, tf32=tf32)

    def open_free(self, content: bytes, options: GpuOptions, stream: Stream) -> FreeSession:
        from onestream.serving.engine.onnx_cuda import OnnxCudaFreeSession

        return OnnxCudaFreeSession(self._in_precision(content, options), stream, tf32=options.precision == "tf32")

    @staticmethod
    def _in_precision(content: bytes, options: GpuOptions) -> bytes:
        """The network; ONNX Runtime takes float16 from the graph."""
        if options.precision != "fp16":
            return content
        from onestream.serving.engine.precision import to_float16
        from onestream.serving.engine.served import load_served

        return bytes(to_float16(load_served(content, sizes_vary=True)).SerializeToString())


class _OpenVino(OnCpu):
    """The network as it is, for processors of Intel and AMD."""

    name, title, distributions, module = "openvino", "OpenVINO", ("openvino",), "openvino"
    in_bfloat16 = True

    def on_cpu(self) -> type[CpuEngine]:
        from onestream.serving.engine.openvino_cpu import OpenVinoEngine

        return OpenVinoEngine


ENGINE_PARAMETER = "engine"
"""Of models on a CPU, the name of their engine where it is not ONNX Runtime."""
ONNX_RUNTIME = _OnnxRuntime()
ENGINES: dict[str, OnGpu] = {row.name: row for row in (_TensorRt(), ONNX_RUNTIME)}
"""Those of ``serving.gpu.engine``."""
CPU_ENGINES: dict[str, OnCpu] = {row.name: row for row in (ONNX_RUNTIME, _OpenVino())}
"""Those of ``serving.cpu.engine``."""


def names_of(able: Callable[[OnGpu], bool]) -> str:
    """The engines of a GPU that can do something, in words: *tensorrt*."""
    return " or ".join(name for name, row in ENGINES.items() if able(row))


def open_engine(
    model: Path | bytes,
    options: GpuOptions,
    device: Device,
    *,
    definition: Definition | None = None,
    progress: Progress = lambda _: None,
) -> DeviceEngine:
    """Load a served network, a path or its content, with the engine that ``options`` name.

    A plan comes from the cache, or is built, which can take minutes; ``progress`` hears of it. ``definition`` is the
    one that the network must have been built with, None for whichever it carries.

    Raises ``BadNetwork``, ``onestream.serving.errors.BadPlan``, ``preprocess.BackendMissing`` naming the package that
    is missing, or ``preprocess.StampMismatch`` where the network was built with another definition.
    """
    # A process that serves on a CPU imports this room too, and needs neither onnx nor an engine of a GPU.
    return ENGINES[options.engine].open(_content(model, definition), options, device, progress)


def open_free_session(
    model: Path | bytes, options: GpuOptions, stream: Stream, *, definition: Definition | None = None
) -> FreeSession:
    """Load a served network on a stream for pixels of any size.

    The rest is as of ``open_engine``; ``BadPlan`` is raised where ``options`` name an engine whose plans have one size.
    """
    return ENGINES[options.engine].open_free(_content(model, definition, sizes_vary=True), options, stream)


def check_stamp(model: bytes, definition: Definition | None, *, sizes_vary: bool = False) -> None:
    """Raise ``StampMismatch`` unless a network carries this definition, or any where it is None.

    ``sizes_vary`` is that of ``load_served``, which says what else is raised.
    """
    from onestream.serving.engine.served import load_served

    metadata = {entry.key: entry.value for entry in load_served(model, sizes_vary=sizes_vary).metadata_props}
    stamped = read_stamp(metadata, where="the ONNX file")
    if stamped is None:
        raise StampMismatch("the ONNX file carries no definition; build it with onestream build")
    if definition is not None:
        check_same(stamped, definition, one_is="the ONNX file", other_is="the model")


def _content(model: Path | bytes, definition: Definition | None, *, sizes_vary: bool = False) -> bytes:
    """The content of a network, after its stamp was checked."""
    content = model if isinstance(model, bytes) else _read(model)
    check_stamp(content, definition, sizes_vary=sizes_vary)
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadNetwork(f"{path.name}: {error.strerror or error}") from None
