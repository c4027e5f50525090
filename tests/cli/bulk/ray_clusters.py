"""Small real clusters of Ray on this machine, and ``onestream bulk --ray`` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from click.testing import Result

ROOT = Path(__file__).parents[3]
PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
BulkOnRay = Callable[..., Result]
"""The command in a process that is connected with a cluster; see the fixture ``bulk_on_ray``."""

_STORE_BYTES = 100 * 1024 * 1024

# Ray would take the address by which other machines see this one, and they could then run what they like here.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@contextmanager
def cluster() -> Iterator[Any]:
    """A ``ray.cluster_utils.Cluster`` with a head that has no CPU for workers."""
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": _STORE_BYTES, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, **options})
    try:
        yield made
    finally:
        made.shutdown()


def add_machine(nodes: Any, *, cpus: int = 1, gpus: int = 0, **variables: str) -> Any:
    """One node more, with so many CPUs and GPUs, which are only declared, and these variables in its environment."""
    options = {"object_store_memory": _STORE_BYTES, "node_ip_address": "127.0.0.1", "env_vars": variables or None}
    return nodes.add_node(num_cpus=cpus, num_gpus=gpus, **options)


@contextmanager
def add_node(nodes: Any, **options: Any) -> Iterator[None]:
    """``add_machine`` until the context is left."""
    added = add_machine(nodes, **options)
    try:
        yield
    finally:
        nodes.remove_node(added)


def workers_of(node: Any) -> list[psutil.Process]:
    """The processes of a node that run workers of ``onestream bulk --ray``."""
    (raylet,) = (info.process for info in node.all_processes["raylet"])
    children = psutil.Process(raylet.pid).children(recursive=True)
    return [child for child in children if "MapWorker" in " ".join(child.cmdline())]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "onestream", "bulk", *map(str, arguments)]


def begin(nodes: Any, *arguments: object) -> subprocess.Popen[str]:
    """The command on a cluster, in small parts of JSON lines."""
    options = ["--ray-address", nodes.address, "--files-per-part", 10, "--format", "jsonl"]
    return subprocess.Popen(command(*arguments, *options), cwd=ROOT, stderr=subprocess.PIPE, text=True)
