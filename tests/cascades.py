"""A small cascade for tests: bright cells are found, and each is named by its strongest channel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import detectors
import yaml
from networks import strongest_channel

SHARED: dict[str, object] = {"video": {}, "serving": {"gpu": {"precision": "fp16"}}}
"""Fields of the cascade that several tests build, so that it is built once; on a GPU it uses none of these options."""


def write_things(
    folder: Path,
    *,
    name: str = "things",
    find: Mapping[str, object] | None = None,
    region: Mapping[str, object] | None = None,
    **fields: object,
) -> dict[str, Path]:
    """Write a cascade file NAME.yaml and the networks of its stages, whose files are returned.

    ``find`` are fields of the first stage's postprocess, ``region`` of how the second cuts, ``fields`` of the whole.
    """
    finder = detectors.pipeline("find", score_threshold=0.5, **(find or {}))
    operations = [
        {"op": "region", "of": "find"} | dict(region or {}),
        {"op": "resize", "mode": "exact", "size": [16, 16]},
        {"op": "normalize", "scale": 255, "mean": [0, 0, 0], "std": [1, 1, 1]},
    ]
    options = {"kind": "classification", "top_k": 1, "activation": "none", "labels": ["red", "green", "blue"]}
    stages = {
        "find": {key: finder[key] for key in ("preprocess", "postprocess")},
        "name": {"preprocess": {"operations": operations}, "postprocess": options},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"stages": stages, **fields}, sort_keys=False))
    networks = {stage: folder / f"{stage}.onnx" for stage in stages}
    detectors.level_detector(networks["find"])
    strongest_channel(networks["name"])
    return networks
