"""A pipeline of the shared server whose network takes pictures of any size from 16 pixels on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from networks import network_of
from onnx import helper
from shared_server import Served


def _write(folder: Path) -> Path:
    nodes = [
        helper.make_node("Gather", ["x", "rows"], ["some"], axis=2),
        helper.make_node("ReduceMean", ["some"], ["y"], axes=[2, 3], keepdims=0),
    ]
    rows = {"rows": np.array([0, 15])}
    model = network_of(nodes, {"x": ["batch", 3, "height", "width"]}, {"y": ["batch", 3]}, rows)
    (folder / "windows.onnx").write_bytes(model.SerializeToString())
    operations = [
        {"op": "decode"},
        {"op": "resize", "mode": "shorter", "size": 32},
        {"op": "normalize", "scale": 255, "mean": [0, 0, 0], "std": [1, 1, 1]},
    ]
    fields = {"preprocess": {"operations": operations}, "postprocess": {"kind": "raw"}, "serving": {"cpu_instances": 1}}
    (folder / "windows.yaml").write_text(yaml.safe_dump(fields))
    return folder / "windows.onnx"


WINDOWS = Served("windows", _write, models=("windows", "windows_fused"))
