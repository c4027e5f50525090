"""What ``onestream bulk --ray`` was asked for; needs no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onestream.wire.priority import Priority

Format = Literal["parquet", "jsonl"]
"""Of the parts of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The command's options, by their names there. ``url`` is None for a pipeline in the workers' own processes."""

    sources: tuple[str, ...]
    to: str | None
    overwrite: bool
    every_file: bool
    column: str | None
    pipeline: str
    repository: Path
    top: int
    file_format: Format
    files_per_part: int
    address: str | None
    workers: int | None
    cpus_per_worker: int
    gpus_per_worker: float
    url: str | None
    token: str | None
    in_flight: int
    timeout_s: float | None
    priority: Priority
