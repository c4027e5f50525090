"""The engine of a served network on a GPU, as a pipeline's options ask for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onestream.preprocess import Definition, StampMismatch
from onestream.preprocess.cuda.device import Device
from onestream.serving.building.stamp import check_same, read_stamp
from onestream.serving.engine.base import DeviceEngine
from onestream.serving.errors import BadNetwork
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
    content = model if isinstance(model, bytes) else _read(model)
    check_stamp(content, definition)
    if options.engine == "onnxruntime":
        from onestream.serving.engine.onnx_cuda import OnnxCudaEngine
        from onestream.serving.engine.precision import to_float16
        from onestream.serving.engine.served import load_served

        if options.precision == "fp16":
            content = to_float16(load_served(content)).SerializeToString()
        return OnnxCudaEngine(content, device, max_batch_size=options.max_batch_size, tf32=options.precision == "tf32")
    from onestream.serving.engine.cache import ensure_plan
    from onestream.serving.engine.plan import PlanOptions
    from onestream.serving.engine.tensorrt import TensorRtEngine

    plan = ensure_plan(
        content,
        PlanOptions(max_batch_size=options.max_batch_size, precision=options.precision),
        gpu=device.kind,
        progress=progress,
    )
    return TensorRtEngine(plan, device)


def check_stamp(model: bytes, definition: Definition | None) -> None:
    """Raise ``StampMismatch`` unless a network carries this definition, or any where it is None."""
    from onestream.serving.engine.served import load_served

    metadata = {entry.key: entry.value for entry in load_served(model).metadata_props}
    stamped = read_stamp(metadata, where="the ONNX file")
    if stamped is None:
        raise StampMismatch("the ONNX file carries no definition; build it with onestream build")
    if definition is not None:
        check_same(stamped, definition, one_is="the ONNX file", other_is="the model")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadNetwork(f"{path.name}: {error.strerror or error}") from None
