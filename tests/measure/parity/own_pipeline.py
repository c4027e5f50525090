"""A pipeline of the user's own, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from onestream.preprocess import Definition

OPERATIONS: list[dict[str, object]] = [
    {"op": "decode"},
    {"op": "resize", "mode": "shorter", "size": 40},
    {"op": "center_crop", "size": [32, 32]},
    {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
]


@dataclass(frozen=True)
class Own:
    """A pipeline file and its repository."""

    file: Path
    repository: Path

    @property
    def definition(self) -> Definition:
        return Definition.model_validate(yaml.safe_load(self.file.read_text())["preprocess"])

    def change(self, index: int, **fields: object) -> None:
        """Change an operation of the pipeline file, and build nothing."""
        content = yaml.safe_load(self.file.read_text())
        content["preprocess"]["operations"][index].update(fields)
        self.file.write_text(yaml.safe_dump(content))
