"""A small network of two pictures, each of which leaves its pixels in the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from networks import network_of
from onnx import helper
from shared_server import Served

SIDE = 8
FIELDS: dict[str, Any] = {
    "preprocess": {
        "operations": [
            {"op": "decode"},
            {"op": "resize", "mode": "exact", "size": [SIDE, SIDE]},
            {"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.25, 0.3, 0.2]},
            {"op": "output"},
        ]
    },
    "postprocess": {"kind": "raw"},
    "network_inputs": {"left": "pixels", "right": {"image": "second"}},
    "serving": {"cpu_instances": 1},
}


def siamese(batch: int | str = "batch") -> onnx.ModelProto:
    """``both``: the two pictures as they come, one after the other; ``apart``: the root of their distance."""
    shape = [batch, 3, SIDE, SIDE]
    nodes = [
        helper.make_node("Concat", ["left", "right"], ["both"], axis=1),
        helper.make_node("Sub", ["left", "right"], ["difference"]),
        helper.make_node("ReduceL2", ["difference"], ["apart"], axes=[1, 2, 3], keepdims=1),
    ]
    # The picture is not the first input of the file.
    return network_of(
        nodes, {"right": shape, "left": shape}, {"both": [batch, 6, SIDE, SIDE], "apart": [batch, 1, 1, 1]}
    )


def expected(network: onnx.ModelProto, left: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
    """What ONNX Runtime makes of the tensors of a loader, (3, height, width), without a batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])
    both, apart = session.run(["both", "apart"], {"left": left[None], "right": right[None]})
    return {"both": both, "apart": apart}


def write(folder: Path, name: str = "siamese", **fields: Any) -> Path:
    """Write NAME.yaml and its network, which is returned."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(FIELDS | fields))
    onnx.save(siamese(), folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


SIAMESE = Served("siamese", write)
