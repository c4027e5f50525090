"""TensorFlow.js graph models: operations and weights read from their files, with NumPy only."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onestream.pipelines.networks.errors import BadGraph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of the graph. ``inputs`` are names of nodes, with ``:1`` for their second output and so on."""

    name: str
    operation: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations by name, and the weights, which are operations without inputs."""

    nodes: dict[str, Node]
    weights: dict[str, Array]

    def concatenate(self, name: str, values: Iterable[str], *, axis: int) -> None:
        """Add a node that joins values."""
        self.weights[f"{name}/axis"] = np.asarray(axis)
        self.nodes[name] = Node(name, "ConcatV2", (*values, f"{name}/axis"), {})


def read_graph(topology: Path, weight_files: Sequence[Path]) -> Graph:
    """Read a graph model: its ``model.json`` and the files of its weights, in the order of the manifest.

    Weights kept as float16 become float32. Raises ``BadGraph`` where the files do not fit each other, and ``OSError``.
    """
    model = json.loads(topology.read_bytes())
    data = b"".join(file.read_bytes() for file in weight_files)
    weights: dict[str, Array] = {}
    begin = 0
    for entry in (entry for group in model["weightsManifest"] for entry in group["weights"]):
        kept = np.dtype(entry.get("quantization", entry)["dtype"])
        end = begin + kept.itemsize * math.prod(entry["shape"])
        if end > len(data):
            raise BadGraph(f"{topology.name}: its weights end inside {entry['name']!r}")
        values = np.frombuffer(data[begin:end], kept).reshape(entry["shape"])
        weights[entry["name"]] = values.astype(entry["dtype"])
        begin = end
    if begin != len(data):
        raise BadGraph(f"{topology.name}: its weights take {begin} bytes; the files hold {len(data)}")
    nodes = {
        entry["name"]: Node(
            entry["name"],
            entry["op"],
            tuple(name.removesuffix(":0") for name in entry.get("input", ())),
            {key: _attribute(value) for key, value in entry.get("attr", {}).items()},
        )
        for entry in model["modelTopology"]["node"]
    }
    return Graph(nodes, weights)


def _attribute(value: Mapping[str, Any]) -> Any:
    """An attribute of the JSON form: numbers are written as text, text as a list of its bytes or as base64."""
    match value:
        case {"list": listed}:
            return [int(number) for number in listed.get("i", ())]
        case {"s": str(text)}:
            return base64.b64decode(text).decode()
        case {"s": list(characters)}:
            return bytes(characters).decode()
        case {"i": number}:
            return int(number)
    return next(iter(value.values()), None)
