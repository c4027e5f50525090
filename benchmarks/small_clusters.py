"""Small real clusters of Ray on this machine, whose nodes and workers can be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

_STORE_BYTES = 100 * 1024 * 1024

# Ray would take the address by which other machines see this one, and they could then run what they like here.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@contextmanager
def cluster(*, nodes: int) -> Iterator[Any]:
    """A ``ray.cluster_utils.Cluster`` with a head that has no CPU for workers, and nodes with one each."""
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": _STORE_BYTES, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, **options})
    try:
        for _ in range(nodes):
            add_node(made)
        yield made
    finally:
        made.shutdown()


def add_node(made: Any, *, cpus: int = 1, gpus: int = 0, **variables: str) -> Any:
    """One node more, with so many CPUs and GPUs, which are only declared, and these variables in its environment."""
    return made.add_node(
        num_cpus=cpus,
        num_gpus=gpus,
        object_store_memory=_STORE_BYTES,
        node_ip_address="127.0.0.1",
        env_vars=variables or None,
    )


def workers_of(node: Any) -> list[psutil.Process]:
    """The processes of a node that run workers of ``onestream bulk --ray``."""
    (raylet,) = (info.process for info in node.all_processes["raylet"])
    children = psutil.Process(raylet.pid).children(recursive=True)
    return [child for child in children if "MapWorker" in " ".join(child.cmdline())]
