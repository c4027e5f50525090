"""Which engines this machine's GPU can run, and which of them a run of the tests used."""

from __future__ import annotations

from functools import cache

from onestream.preprocess.cuda.device import open_device
from onestream.preprocess.errors import BackendMissing
from onestream.serving.engine import DeviceEngine, FreeSession

NAMES = ("tensorrt", "onnxruntime")
_ran: dict[str, None] = {}


@cache
def why_not(name: str) -> str | None:
    """Why the first GPU cannot run an engine; None where it can."""
    if name == "onnxruntime":
        import onnxruntime

        has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        return None if has_cuda else f"ONNX Runtime {onnxruntime.__version__} is a build without CUDA"
    try:
        from onestream.serving.engine import library
    except BackendMissing:
        return "no TensorRT is installed"
    if library.IS_RTX:
        from onestream.serving.engine.plan import rtx_capabilities

        capability = open_device().compute_capability
        if capability not in rtx_capabilities():
            return f"{library.TITLE} does not know compute capability {library.capability_name(capability)}"
    return None


def ran(engine: DeviceEngine | FreeSession) -> str:
    """Note that a test runs an engine; returns its name with its version."""
    title = _title(engine)
    _ran[title] = None
    return title


def summary() -> list[str]:
    """Lines for pytest's summary, none where no test ran an engine."""
    if not _ran:
        return []
    return [f"engines that ran: {', '.join(_ran)}", *(f"not {name}: {why}" for name in NAMES if (why := why_not(name)))]


def _title(engine: DeviceEngine | FreeSession) -> str:
    kind = type(engine).__name__
    if kind == "TensorRtEngine":
        from onestream.serving.engine import library

        return library.TITLE
    if kind in ("OnnxCudaEngine", "OnnxCudaFreeSession"):
        import onnxruntime

        return f"ONNX Runtime {onnxruntime.__version__}"
    if kind == "TorchEngine":
        import torch

        return f"PyTorch {torch.__version__}, operator by operator"
    return kind
