"""Engines that run a network: ONNX Runtime and OpenVINO on a CPU; TensorRT and ONNX Runtime on a GPU's stream."""

from onestream.serving.engine.base import DeviceEngine, DeviceSession, EngineTensor, FreeSession
from onestream.serving.engine.cpu import CpuEngine, OnnxRuntimeEngine
from onestream.serving.engine.table import open_engine, open_free_session

__all__ = [
    "CpuEngine",
    "DeviceEngine",
    "DeviceSession",
    "EngineTensor",
    "FreeSession",
    "OnnxRuntimeEngine",
    "open_engine",
    "open_free_session",
]
