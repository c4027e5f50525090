"""Engines that run a network: ONNX Runtime on a CPU; TensorRT, or ONNX Runtime with CUDA, on a GPU's stream."""

from onestream.serving.engine.base import DeviceEngine, DeviceSession, Engine, EngineTensor, FreeSession
from onestream.serving.engine.onnx_cpu import OnnxRuntimeEngine
from onestream.serving.engine.table import open_engine, open_free_session

__all__ = [
    "DeviceEngine",
    "DeviceSession",
    "Engine",
    "EngineTensor",
    "FreeSession",
    "OnnxRuntimeEngine",
    "open_engine",
    "open_free_session",
]
