"""Whether all machines of a cluster run the same onestream as the one that asks."""

from __future__ import annotations

import hashlib
import platform
import time
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import onestream

_ANSWER_TIMEOUT_S = 120.0
"""A machine that is asked first starts a process of Python."""
_LISTED_AGAIN_S = 0.5


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
    """Ask every machine of the cluster what it runs; one that leaves meanwhile is no part of it.

    Raises ``WrongMachine``.
    """
    machines = _machines()
    asked = {node_id: _ask(node_id, machine) for node_id, machine in machines.items()}
    until = time.monotonic() + _ANSWER_TIMEOUT_S
    while asked:
        node_id, answer = asked.popitem()
        machine = machines[node_id]
        try:
            ray.get(answer, timeout=_ANSWER_TIMEOUT_S)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, WrongMachine):
                raise error.cause from None
            why = str(error.cause).partition("\n")[0] or type(error.cause).__name__
            raise WrongMachine(f"machine {machine} cannot run onestream: {why}") from None
        # Of any kind, where a machine is lost while it is asked.
        except ray.exceptions.RayError as error:
            if time.monotonic() > until or not isinstance(error, ray.exceptions.TaskUnschedulableError):
                raise WrongMachine(f"machine {machine} did not answer: {type(error).__name__}") from None
            # Ray's scheduler and its list of nodes differ for a moment when a machine comes or goes.
            time.sleep(_LISTED_AGAIN_S)
            if node_id in _machines():
                asked[node_id] = _ask(node_id, machine)


def _machines() -> dict[str, str]:
    """What each machine is called, by the identifier of its node."""
    return {
        node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in ray.nodes() if node["Alive"]
    }


def _ask(node_id: str, machine: str) -> ray.ObjectRef[None]:
    ask = ray.remote(num_cpus=0, max_retries=2)(check_same)
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ask.options(scheduling_strategy=there).remote(installed(), machine=machine)
