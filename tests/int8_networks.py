"""A small classifier of colours with real layers, which int8 serves well or ruins, and pictures for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import builds
import numpy as np
import onnx
import yaml
from networks import network_of
from onnx import helper
from PIL import Image

from onestream.serving.building.build import Built
from onestream.serving.building.quantization import search
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.pictures import Split
from onestream.serving.engine.quantization import Quantization, read_price
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import Pipeline

COLORS = ("red", "green", "blue")
SIDE = 32
_CHANNELS = 8
_CONSTANT = 7
"""The channel that carries a constant through a ruined network."""
HALVES = {"scale": 1, "mean": [127, 127, 127], "std": [128, 128, 128]}
IMAGENET = {"scale": 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def color_network(
    *, layers: int = 3, constant: float = 0.0, confidence: float = 30.0, opset: int = 13
) -> onnx.ModelProto:
    """Logits of the three colours: convolutions with padding and ReLU, a mean, and a linear layer.

    ``constant`` is what one channel holds throughout, which nothing reads: a tensor whose other values matter is then
    as wide, and has few levels left for them.
    """
    rng = np.random.default_rng(5)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    value, inside = "input", 3
    for number in range(layers):
        weights = rng.normal(0, 0.01, (_CHANNELS, inside, 3, 3))
        for channel in range(3):
            weights[channel, channel] += 1 / 9
        if inside == _CHANNELS:
            weights[:, _CONSTANT] = 0
        weights[_CONSTANT] = 0
        bias = np.full(_CHANNELS, 0.1)
        bias[_CONSTANT] = constant
        constants |= {f"weights_{number}": weights, f"bias_{number}": bias}
        given = [value, f"weights_{number}", f"bias_{number}"]
        nodes.append(helper.make_node("Conv", given, [f"conv_{number}"], name=f"conv_{number}", pads=[1, 1, 1, 1]))
        value, inside = f"relu_{number}", _CHANNELS
        nodes.append(helper.make_node("Relu", [f"conv_{number}"], [value], name=value))
    matrix = np.zeros((_CHANNELS, 3))
    matrix[:3] = confidence * (np.eye(3) - 1 / 3)
    constants |= {"matrix": matrix, "offsets": np.zeros(3)}
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["pooled"], name="pooled"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flat"),
        helper.make_node("Gemm", ["flat", "matrix", "offsets"], ["logits"], name="logits"),
    ]
    in_float32 = {name: values.astype(np.float32) for name, values in constants.items()}
    return network_of(nodes, {"input": ["batch", 3, SIDE, SIDE]}, {"logits": ["batch", 3]}, in_float32, opset=opset)


def pictures(folder: Path, *, count: int = 24) -> list[Path]:
    """Pictures that each show one colour most, by turns, under noise: PNG files named by their number and colour."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    files = []
    for number in range(count):
        levels = rng.integers(0, 120, (40, 48, 3))
        levels[..., number % 3] += rng.integers(60, 130)
        files.append(folder / f"{number:03}-{COLORS[number % 3]}.png")
        Image.fromarray(levels.astype(np.uint8)).save(files[-1])
    return files


def pipeline_file(
    folder: Path, network: onnx.ModelProto, *, normalize: dict[str, Any] | None = None, **serving: Any
) -> tuple[Path, Path]:
    """``colors.yaml`` and its network, ``colors.onnx``."""
    folder.mkdir(parents=True, exist_ok=True)
    operations: Sequence[dict[str, Any]] = [
        {"op": "decode"},
        {"op": "resize", "mode": "exact", "size": [SIDE, SIDE]},
        {"op": "normalize", **(normalize or HALVES)},
        {"op": "output"},
    ]
    fields = {
        "preprocess": {"operations": operations},
        "postprocess": {"kind": "classification", "top_k": 2, "labels": list(COLORS)},
        "serving": serving,
    }
    file, own = folder / "colors.yaml", folder / "colors.onnx"
    file.write_text(yaml.safe_dump(fields), encoding="utf-8")
    own.write_bytes(network.SerializeToString())
    return file, own


def in_int8(
    folder: Path, network: onnx.ModelProto | None = None, serving: dict[str, Any] | None = None, **options: Any
) -> Built:
    """The repository of a network in int8; ``serving`` is that of its file, ``options`` those of the calibration."""
    file, own = pipeline_file(folder, network or color_network(), **(serving or {}))
    calibration = Calibration(pictures=pictures(folder / "pictures"), **options)
    return builds.build(file, folder=folder / "repository", onnx_file=own, precision="int8", calibration=calibration)


def searched(
    folder: Path,
    network: onnx.ModelProto | None = None,
    *,
    normalize: dict[str, Any] | None = None,
    turned: bool = False,
    for_tensorrt: bool = False,
    **options: Any,
) -> tuple[search.InInt8, Quantization]:
    """What the search makes of a network, and what it says of it, without a repository.

    ``turned`` gives it the pictures in the other order; ``options`` are those of the calibration.
    """
    file, own = pipeline_file(folder, network or color_network(), normalize=normalize)
    pipeline, shown = Pipeline.from_file(file), pictures(folder / "pictures")
    calibration = Calibration(pictures=shown[::-1] if turned else shown, **options)
    made = search.quantize(
        pipeline,
        onnx_graph.prepare(onnx_graph.load(own), pipeline.preprocess),
        Split.of(calibration.pictures, pipeline.preprocess, pipeline.limits),
        labels=COLORS,
        calibration=calibration,
        for_tensorrt=for_tensorrt,
    )
    found = read_price({entry.key: entry.value for entry in made.network.metadata_props})
    assert isinstance(found, Quantization)
    return made, found


def in_both(folder: Path) -> tuple[Path, Path, Built]:
    """Repositories of the same pipeline in float32 and in int8, and the second build."""
    # A folder of one name: the files say which pipeline file they were made from.
    file, own = pipeline_file(folder / "float32" / "own", color_network())
    builds.build(file, folder=folder / "float32" / "repository", onnx_file=own)
    built = in_int8(folder / "int8" / "own")
    return folder / "float32" / "repository", built.folder, built
