"""The files of a served network in the folder of a model's version."""

from __future__ import annotations

from pathlib import Path

NETWORK_FILE = "model.onnx"
"""What a CPU runs."""
_FLOAT_ENDING = ".float32.onnx"


def float_beside(network: Path) -> Path:
    """Where the network in float32 lies beside one in int8: ``model.float32.onnx`` beside ``model.onnx``."""
    return network.with_suffix(_FLOAT_ENDING)


def float_network(network: Path) -> Path:
    """The file of a network in float32: the one beside it, or itself where there is none."""
    beside = float_beside(network)
    return beside if beside.exists() else network
