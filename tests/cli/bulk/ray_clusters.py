"""Small real clusters of Ray on this machine, and ``onestream bulk --ray`` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset
from click.testing import Result

from benchmarks import small_clusters
from benchmarks.small_clusters import cluster, workers_of

__all__ = ["ROOT", "BulkOnRay", "add_node", "begin", "cluster", "command", "rows", "run", "workers_of"]

ROOT = Path(__file__).parents[3]
BulkOnRay = Callable[..., Result]
"""The command in a process that is connected with a cluster; see the fixture ``bulk_on_ray``."""

OF_THE_RUN = ("latency_ms",)
"""Columns that say nothing of the image."""


@contextmanager
def add_node(nodes: Any, **options: Any) -> Iterator[None]:
    """One node more in a cluster, with options of ``small_clusters.add_node``, until the context is left."""
    added = small_clusters.add_node(nodes, **options)
    try:
        yield
    finally:
        nodes.remove_node(added)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "onestream", "bulk", *map(str, arguments)]


def run(*arguments: object, timeout_s: float = 240, **options: Any) -> subprocess.CompletedProcess[str]:
    settings = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": timeout_s}
    return subprocess.run(command(*arguments), **{**settings, **options})  # type: ignore[call-overload,no-any-return]


def begin(nodes: Any, *arguments: object) -> subprocess.Popen[str]:
    """The command on a cluster, in small parts of JSON lines."""
    options = ["--ray-address", nodes.address, "--files-per-part", 10, "--format", "jsonl"]
    return subprocess.Popen(command(*arguments, *options), cwd=ROOT, stderr=subprocess.PIPE, text=True)


def rows(out: Path) -> list[dict[str, Any]]:
    """The rows of an output without what belongs to the run, in the order of their sources."""
    if out.suffix == ".jsonl":
        found = [json.loads(line) for line in out.read_text().splitlines()]
    elif out.is_dir():
        parts = sorted(out.glob("part-*"))
        if parts and parts[0].suffix == ".jsonl":
            found = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        else:
            found = [row for part in parts for row in pyarrow.dataset.dataset(part).to_table().to_pylist()]
    else:
        found = pyarrow.dataset.dataset(out).to_table().to_pylist()
    return [{name: value for name, value in row.items() if name not in OF_THE_RUN} for row in found]
