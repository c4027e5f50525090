"""Engines that run a network: ONNX Runtime on a CPU; TensorRT, or ONNX Runtime with CUDA, on a GPU's stream."""

from onestream.serving.engine.base import DeviceEngine, DeviceSession, Engine, EngineTensor
from onestream.serving.engine.load import open_engine
from onestream.serving.engine.onnx_cpu import OnnxRuntimeEngine

__all__ = ["DeviceEngine", "DeviceSession", "Engine", "EngineTensor", "OnnxRuntimeEngine", "open_engine"]
