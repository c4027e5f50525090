"""The files of a served network in the folder of a model's version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onestream.serving.pipeline import Precision

NETWORK_FILE = "model.onnx"
"""What a CPU runs."""
BUILT_FROM_FILE = "built_from.txt"
"""Beside it: the path of the file of ``onestream build --onnx``."""
_FLOAT_ENDING = ".float32.onnx"
_TENSORRT_ENDING = ".tensorrt.onnx"


def built_from_beside(network: Path) -> Path:
    """Where the path of the file of ``onestream build --onnx`` is written down beside a network."""
    return network.with_name(BUILT_FROM_FILE if network.name == NETWORK_FILE else f"{network.stem}.{BUILT_FROM_FILE}")


def float_beside(network: Path) -> Path:
    """Where the network in float32 lies beside one in int8: ``model.float32.onnx`` beside ``model.onnx``."""
    return network.with_suffix(_FLOAT_ENDING)


def tensorrt_beside(network: Path) -> Path:
    """Where the network in int8 for TensorRT lies beside the one for a CPU: ``model.tensorrt.onnx``."""
    return network.with_suffix(_TENSORRT_ENDING)


def float_network(network: Path) -> Path:
    """The file of a network in float32: the one beside it, or itself where there is none."""
    beside = float_beside(network)
    return beside if beside.exists() else network


def gpu_network(network: Path, precision: Precision) -> Path:
    """The file that a plan of TensorRT is built from: that in int8 for it, for every other precision float32."""
    return tensorrt_beside(network) if precision == "int8" else float_network(network)
