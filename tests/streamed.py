"""Small pipelines of streams. Their scores are mean colours, so that a result says which frame it is of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import yaml
from networks import CLASSES, mean_color
from shared_server import Served

OPERATIONS: list[dict[str, Any]] = [
    {"op": "decode"},
    {"op": "resize", "mode": "shorter", "size": 40},
    {"op": "center_crop", "size": [32, 32]},
    {"op": "normalize", "mean": [0, 0, 0], "std": [1, 1, 1]},
]


def streamed(
    name: str,
    *,
    network: onnx.ModelProto | None = None,
    postprocess: dict[str, Any] | None = None,
    serving: dict[str, Any] | None = None,
    roles: Sequence[str] = ("video", "model"),
    **video: Any,
) -> Served:
    """Of its models those with these roles are loaded, by default all that a stream takes; no roles mean all."""

    def write(folder: Path) -> Path:
        fields = {
            "preprocess": {"operations": OPERATIONS},
            "postprocess": postprocess or {"kind": "raw"},
            "serving": serving or {"cpu_instances": 1},  # starting processes is what takes time
            "video": video,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))
        onnx.save(network or mean_color(), folder / f"{name}.onnx")
        return folder / f"{name}.onnx"

    return Served(name, write, models=tuple(f"{name}_{role}" for role in roles))


STREAMED = streamed("streamed", max_streams=4, max_pixels=640 * 480, idle_s=2, results=8, buffer_bytes=65536)
STRIDED = streamed(
    "strided", postprocess={"kind": "classification", "top_k": CLASSES, "activation": "none"}, sampling={"stride": 2}
)
