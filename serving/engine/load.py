"""The engine of a served network on a GPU, as a pipeline's options ask for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onestream.preprocess import Definition, StampMismatch
from onestream.preprocess.cuda.device import Device, Stream
from onestream.serving.engine.base import DeviceEngine, FreeSession
from onestream.serving.engine.stamp import check_same, read_stamp
from onestream.serving.errors import BadNetwork, BadPlan
from onestream.serving.pipeline import GpuOptions


def open_engine(
    model: Path | bytes,
    options: GpuOptions,
    device: Device,
    *,
    definition: Definition | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DeviceEngine:
    """Load a served network, a path or its content, with TensorRT or ONNX Runtime, whichever ``options.engine`` names.

    For TensorRT the plan comes from the cache, or is built, which can take minutes; ``progress`` hears of it.
    ``definition`` is the one that the network must have been built with, None for whichever it carries.

    Raises ``BadNetwork``, ``onestream.serving.errors.BadPlan``, ``preprocess.BackendMissing`` naming the package that
    is missing, or ``preprocess.StampMismatch`` where the network was built with another definition.
    """
    # A process that serves on a CPU imports this room too, and needs neither onnx nor an engine of a GPU.
    content = _content(model, definition)
    if options.engine == "onnxruntime":
        from onestream.serving.engine.onnx_cuda import OnnxCudaEngine

        return OnnxCudaEngine(
            _of_precision(content, options), device, max_batch_size=options.max_batch_size, tf32=_tf32(options)
        )
    from onestream.serving.engine.cache import ensure_plan
    from onestream.serving.engine.plan import PlanOptions
    from onestream.serving.engine.tensorrt import TensorRtEngine

    plan = ensure_plan(
        content,
        PlanOptions(max_batch_size=options.max_batch_size, precision=options.network_precision),
        gpu=device.kind,
        progress=progress,
    )
    return TensorRtEngine(plan, device)


def open_free_session(
    model: Path | bytes, options: GpuOptions, stream: Stream, *, definition: Definition | None = None
) -> FreeSession:
    """Load a served network on a stream for pixels of any size, with ONNX Runtime.

    The rest is as of ``open_engine``; ``BadPlan`` is raised where ``options.engine`` is TensorRT.
    """
    if options.engine != "onnxruntime":
        raise BadPlan(
            "a plan of TensorRT takes pictures of one size; serving.gpu.engine: onnxruntime takes any, which a cascade "
            "needs on a GPU"
        )
    from onestream.serving.engine.onnx_cuda import OnnxCudaFreeSession

    content = _content(model, definition, sizes_vary=True)
    return OnnxCudaFreeSession(_of_precision(content, options), stream, tf32=_tf32(options))


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


def _of_precision(content: bytes, options: GpuOptions) -> bytes:
    """A network for ONNX Runtime, which takes float16 from the graph."""
    if options.precision != "fp16":
        return content
    from onestream.serving.engine.precision import to_float16
    from onestream.serving.engine.served import load_served

    return bytes(to_float16(load_served(content, sizes_vary=True)).SerializeToString())


def _tf32(options: GpuOptions) -> bool:
    return options.precision == "tf32"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadNetwork(f"{path.name}: {error.strerror or error}") from None
