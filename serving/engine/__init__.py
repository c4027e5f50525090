"""What runs a network: ONNX Runtime on a CPU; TensorRT, or ONNX Runtime with CUDA, on a GPU's stream."""

from serving.engine.base import DeviceEngine, DeviceSession, Engine, EngineTensor
from serving.engine.load import open_engine
from serving.engine.onnx_cpu import OnnxRuntimeEngine

__all__ = ["DeviceEngine", "DeviceSession", "Engine", "EngineTensor", "OnnxRuntimeEngine", "open_engine"]
