"""Whether all machines of a cluster run the same onestream as the one that asks."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import onestream

_ANSWER_TIMEOUT_S = 120.0
"""A machine that is asked first starts a process of Python."""


class WrongMachine(Exception):
    """A machine that would give other results, or none; the message names it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What a process runs: the version of onestream, a digest of its code, and Python's version without the patch."""

    version: str
    digest: str
    python: str

    def __str__(self) -> str:
        return f"onestream {self.version} ({self.digest[:12]}) on Python {self.python}"


@lru_cache(maxsize=1)
def installed() -> Installed:
    """What this process runs."""
    folder = Path(onestream.__file__).parent
    code = hashlib.sha256()
    for room in sorted(path for path in folder.iterdir() if path.is_dir()):
        # Not rglob from the top: in a checkout the rooms are links.
        for path in sorted(room.resolve().rglob("*.py")):
            code.update(f"{room.name}/{path.relative_to(room.resolve())}\0".encode())
            code.update(path.read_bytes())
    major, minor, _ = platform.python_version_tuple()
    return Installed(metadata.version("onestream"), code.hexdigest(), f"{major}.{minor}")


def here() -> str:
    """The address of this machine in its cluster."""
    return str(ray.util.get_node_ip_address())


def check_same(expected: Installed, *, machine: str) -> None:
    """Raise ``WrongMachine`` where this process runs something else than ``expected``."""
    here = installed()
    if here != expected:
        raise WrongMachine(
            f"machine {machine} runs {here}, and the one that asks runs {expected}; install the same on both"
        )


def check_all() -> None:
    """Ask every machine of the cluster what it runs. Raises ``WrongMachine``."""
    alive = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    ask = ray.remote(num_cpus=0, max_retries=2)(check_same)
    asked = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(
            installed(), machine=f"{address} ({node_id[:8]})"
        ): f"{address} ({node_id[:8]})"
        for node_id, address in alive.items()
    }
    for answer, machine in asked.items():
        try:
            ray.get(answer, timeout=_ANSWER_TIMEOUT_S)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, WrongMachine):
                raise error.cause from None
            why = str(error.cause).partition("\n")[0] or type(error.cause).__name__
            raise WrongMachine(f"machine {machine} cannot run onestream: {why}") from None
        # Of any kind, where a machine is lost while it is asked.
        except ray.exceptions.RayError as error:
            raise WrongMachine(f"machine {machine} did not answer: {type(error).__name__}") from None
