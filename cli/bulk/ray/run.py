"""The run as the one that asks sees it: Ray started or found, parts handed out, counts coming back."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import ray
import ray.data

from onestream.cli.bulk.outputs import rows_in
from onestream.cli.bulk.ray.answering import Answering
from onestream.cli.bulk.ray.attempts import Attempts
from onestream.cli.bulk.ray.machines import here, installed
from onestream.cli.bulk.ray.parts import Counts, number_in
from onestream.cli.bulk.ray.worker import Work, Worker, items_of, list_parts
from onestream.preprocess.backends.base import Device

_LOCAL_STORE_BYTES = 1 << 30
"""Of a Ray on this machine alone: it holds a model and names of files."""
_READERS = 16
_ROUNDING = 1e-9
_ANSWERS_WITHIN_S = 10.0
_RAY_CLIENT = "ray://"


class NoRoom(Exception):
    """No machine of the cluster has what a worker reserves; the message says what that is, and what there is."""


@dataclass(frozen=True, slots=True)
class Workers:
    """``count`` processes at most, each with CPUs and a share of a GPU; None for as many as the cluster has room for.

    ``gpus`` is 0 for workers on CPUs, and at most 1, since a worker uses one GPU. Raises ``ValueError`` for others.
    """

    cpus: float = 1
    gpus: float = 0
    count: int | None = None

    def __post_init__(self) -> None:
        if not self.cpus > 0:
            raise ValueError(f"got {self.cpus:g} CPUs for each worker; expected more than 0")
        if not 0 <= self.gpus <= 1:
            raise ValueError(f"got {self.gpus:g} GPUs for each worker; expected 0 to 1, such as 0.5 to share one")

    @property
    def device(self) -> Device:
        """What they run a pipeline on."""
        return "gpu" if self.gpus else "cpu"

    def most(self) -> int:
        """How many there are at most; by default what the machines have room for that the cluster has now.

        Raises ``NoRoom`` where there is none for one: it would be waited for for ever.
        """
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(map(self._fit_on, machines))
        if not room:
            kinds = Counter(_named(machine.get("CPU", 0), machine.get("GPU", 0)) for machine in machines)
            there_are = ", ".join(f"{count} with {kind}" for kind, count in kinds.most_common())
            raise NoRoom(
                f"no machine of the cluster has the {_named(self.cpus, self.gpus)} that a worker was to reserve; "
                f"there are {there_are}"
            )
        return self.count or room

    def _fit_on(self, machine: Mapping[str, float]) -> int:
        # Quotients such as 0.3 / 0.1 are a little below what they are.
        by_cpus = int(machine.get("CPU", 0) / self.cpus + _ROUNDING)
        # The share of a worker is one GPU's, never two GPUs'.
        return min(by_cpus, int(machine.get("GPU", 0)) * int(1 / self.gpus + _ROUNDING)) if self.gpus else by_cpus


def _named(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU and {gpus:g} GPU"


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected with the cluster at ``address``; None starts a Ray of this machine, which ends with the block.

    A process that is connected already stays so. Raises ConnectionError, ``ValueError`` for an address of Ray Client.
    """
    if address is not None and address.startswith(_RAY_CLIENT):
        raise ValueError(
            f"--ray-address {address} is for Ray Client, whose program is on no machine of the cluster; on one of them "
            "give HOST:PORT of the head, such as HEAD:6379, or auto"
        )
    if ray.is_initialized():
        yield
        return
    # What Ray says of its own work would stand between our lines.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            # Nobody was asked whether figures about this run may leave the machine.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Whoever reaches Ray's ports runs what they like: nobody beyond this machine may.
            ray.init(
                "local",
                include_dashboard=False,
                object_store_memory=_LOCAL_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
        else:
            _check_answers(address)
            ray.init(address, **quiet)
    except Exception as error:  # of any kind, where a process of Ray does not start
        place = "on this machine" if address is None else f"at {address}"
        raise ConnectionError(f"no Ray {place}: {str(error).partition(chr(10))[0]}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise OSError where nobody listens at ``HOST:PORT``, which Ray itself asks again for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN_S).close()


def finished(work: Work) -> Iterator[tuple[str, Counts]]:
    """The complete files of earlier runs, and what is in them."""

    def count(name: str) -> Counts:
        return Counts(*rows_in(work.out.read(name), work.file_format))

    names = sorted(name for name in work.out.names() if number_in(name) is not None)
    with ThreadPoolExecutor(_READERS) as readers:
        yield from zip(names, readers.map(count, names), strict=True)


def rest(work: Work, answering: Answering, workers: Workers, *, finished: frozenset[str]) -> Iterator[Counts]:
    """Do the parts that are not ``finished``; the counts of each as its file is complete, in any order.

    Raises ``NoRoom``, what a worker met, as ``WrongMachine``, ``SourcesChanged`` and OSError, ``WorkerFailed`` where a
    part ended its workers, and Ray's own errors.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # A block for each part: parts are what workers are given, and wait in memory.
    context.target_max_block_size = 1
    # Not ray.data.range, whose tasks would wait for a CPU that workers have.
    parts = ray.data.from_items([{"job": 0}]).map_batches(
        list_parts,
        fn_kwargs={"work": work, "finished": finished},
        num_cpus=0,
        # This machine has the list of standard input.
        resources={f"node:{here()}": 0.001},
    )
    reports = parts.map_batches(
        Worker,
        fn_constructor_kwargs={
            "work": work,
            "answering": answering,
            "asked_by": installed(),
            "attempts": Attempts(),
        },
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers.most()),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
    )
    for batch in reports.iter_batches(batch_size=None, prefetch_batches=0):
        for report in items_of(batch):
            if isinstance(report, Exception):
                raise report
            assert isinstance(report, Counts)
            yield report


@contextmanager
def standard_input() -> Iterator[str]:
    """The name of a file of this machine with what comes on standard input, which the lister reads again and again."""
    with tempfile.NamedTemporaryFile("wb", prefix="onestream-list-") as file:
        for line in sys.stdin.buffer:
            file.write(line)
        file.flush()
        yield file.name
