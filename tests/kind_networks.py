"""A small pipeline of every kind, whose network answers something for any picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cascades
import detectors
import numpy as np
import onnx
import yaml
from builds import build
from image_files import encode
from networks import network_of
from onnx import helper
from pages import blocks
from PIL import Image
from shared_server import Served

from onestream.client import Tensors
from onestream.serving.building.build import Built
from onestream.serving.models.in_process import InProcess

SIDE = 32
_OPERATIONS = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [SIDE, SIDE]}, {"op": "output"}]
_LETTERS = "a\nb\nc\nd"
OPTIONS: dict[str, tuple[Sequence[int], str, dict[str, Any]]] = {
    "classification": ((7,), "Identity", {"top_k": 3, "labels": ["Katze, groß", *"bcdefg"]}),
    "dense_map": ((8, 8), "Identity", {}),
    "embedding": ((12, 1, 1), "Identity", {}),
    "matte": ((SIDE, SIDE), "Sigmoid", {}),
    "raw": ((7,), "Identity", {}),
    "rotation": ((4,), "Identity", {"degrees": [0, 90, 180, 270]}),
    "segmentation": ((3, 8, 8), "Identity", {"labels": list("abc")}),
    "text": ((6, 5), "Identity", {}),
    "text_lines": ((1, SIDE, SIDE), "Sigmoid", {"threshold": 0.3}),
}
"""The shape of the network's output, its last operator, and options of the kind."""


def write_network(path: Path, shape: Sequence[int], last: str) -> None:
    """A network whose one output is the last operator of sums of a picture's channels, in a shape."""
    weights = np.random.default_rng(3).normal(size=(3, int(np.prod(shape)))).astype(np.float32)
    model = network_of(
        [
            helper.make_node("GlobalAveragePool", ["input"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["product"]),
            helper.make_node("Reshape", ["product", "shape"], ["shaped"]),
            helper.make_node(last, ["shaped"], ["y"]),
        ],
        {"input": ["batch", 3, SIDE, SIDE]},
        {"y": ["batch", *shape]},
        {"weights": weights, "shape": np.array([0, *shape], np.int64)},
    )
    model.metadata_props.add(key="character", value=_LETTERS)
    onnx.save(model, path)


def write_of(kind: str, folder: Path, name: str = "mine") -> Path:
    """Write NAME.yaml of a kind whose network is a plain one, which is returned."""
    network, (shape, last, options) = folder / f"{name}.onnx", OPTIONS[kind]
    fields = {"preprocess": {"operations": _OPERATIONS}, "postprocess": {"kind": kind, **options}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    write_network(network, shape, last)
    return network


def _write_embed(folder: Path) -> None:
    (shown,) = (block for block in blocks("kinds.md", "yaml") if "kind: embedding" in block)
    (folder / "embed.yaml").write_text(f"{shown}serving: {{cpu_instances: 1}}\n")


EMBED = Served("embed", _write_embed)
"""The page's."""


def answer_in_process(model: InProcess, picture: np.ndarray) -> Tensors:
    """A model's answer to a picture of RGB, which it must give."""
    (answer,) = model([encode(Image.fromarray(picture), "PNG")])
    assert isinstance(answer, dict), answer
    return answer


def built_of(kind: str, folder: Path) -> Built:
    """A built pipeline ``mine`` of a kind; of *regions* and *reading* a cascade that finds red cells of 8x8 pixels.

    A cascade is called ``things``, a detector ``cells`` and one with points ``poses``, as other tests and the shared
    server call them.
    """
    repository = folder / "repository"
    if kind in ("regions", "reading"):
        networks, file = cascades.write_things(folder, **cascades.SHARED), folder / "things.yaml"
        if kind == "reading":
            described = yaml.safe_load(file.read_text())
            described["stages"]["name"] = {
                "preprocess": {"operations": [{"op": "region", "of": "find"}, *_OPERATIONS[1:]]},
                "postprocess": {"kind": "text", "min_score": 0},
            }
            file.write_text(yaml.safe_dump(described, sort_keys=False))
            write_network(networks["name"], *OPTIONS["text"][:2])
        return build(file, folder=repository, onnx_files=networks)
    served = {
        "detection": detectors.RED_CELLS,
        "keypoints": detectors.POSES,
        "oriented_boxes": detectors.TURNED_CELLS,
        "instance_masks": detectors.MASKED_CELLS,
    }.get(kind)
    name, network = (served.name, served.write(folder)) if served else ("mine", write_of(kind, folder))
    return build(folder / f"{name}.yaml", folder=repository, onnx_file=network)
