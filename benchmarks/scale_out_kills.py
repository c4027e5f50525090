"""Runs of ``onestream bulk --ray`` in the middle of which something is killed: rows that are lost, or there twice.

Each is on a cluster of its own, a head and two nodes with a CPU each, on this machine. When some of the parts are
written, so many as the number of the run says, SIGKILL ends a worker, all processes of a node, or the command itself,
which is then given again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.result_files import ROOT, Raw
from benchmarks.small_clusters import cluster, workers_of

COPIES = 60
_PHOTOS_PER_PART = 10
_PARTS_BEFORE = range(2, 14)
"""So many parts of 36 may be written when it happens."""


def kill_runs(models: Path, folder: Path, *, runs: int) -> dict[str, Raw]:
    """So many runs of each kind, one after the other: how many there were, rows lost and rows doubled in all.

    ``models`` has *classify_fused*; ``folder`` is for pictures and outputs. Raises RuntimeError where a run fails.
    """
    photos = folder / "killed-photos"
    photos.mkdir()
    for number in range(COPIES):
        for photo in sorted((ROOT / "examples" / "photos").glob("*.jpg")):
            (photos / f"{number:02}-{photo.name}").write_bytes(photo.read_bytes())
    found: dict[str, Raw] = {}
    for kind, kill in KINDS.items():
        one: Raw = {"runs": 0, "lost": 0, "doubled": 0}
        for number in range(runs):
            out = folder / f"killed-{kind}-{number}"
            _run(kill, photos, out, models, parts=_PARTS_BEFORE[number % len(_PARTS_BEFORE)])
            lost, doubled = lost_and_doubled(out, map(str, photos.iterdir()))
            one = {"runs": one["runs"] + 1, "lost": one["lost"] + lost, "doubled": one["doubled"] + doubled}
            print(kind, json.dumps(one), flush=True)
        found[kind] = one
    return found


def lost_and_doubled(out: Path, names: Iterable[str]) -> tuple[int, int]:
    """Of an output of JSON lines the names that have no row, and the rows above one for each name."""
    rows = Counter(
        json.loads(line)["path"] for part in out.glob("part-*.jsonl") for line in part.read_text().splitlines()
    )
    return sum(not rows[name] for name in names), rows.total() - len(rows)


def _worker(nodes: Any, _: subprocess.Popen[str]) -> None:
    workers = [worker for node in nodes.worker_nodes for worker in workers_of(node)]
    workers[0].kill()


def _node(nodes: Any, _: subprocess.Popen[str]) -> None:
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)


def _driver(_: Any, command: subprocess.Popen[str]) -> None:
    command.kill()


KINDS: dict[str, Callable[[Any, subprocess.Popen[str]], None]] = {"worker": _worker, "node": _node, "driver": _driver}


def _run(
    kill: Callable[[Any, subprocess.Popen[str]], None], photos: Path, out: Path, models: Path, *, parts: int
) -> None:
    with cluster(nodes=2) as nodes:
        options = ["--repository", models, "--files-per-part", _PHOTOS_PER_PART, "--format", "jsonl"]
        arguments = ["bulk", photos, "--to", out, "--ray-address", nodes.address, *options]
        command = [sys.executable, "-m", "onestream", *map(str, arguments)]

        def begin() -> subprocess.Popen[str]:
            return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

        process = begin()
        while len(list(out.glob("part-*"))) < parts:
            if process.poll() is not None:
                raise RuntimeError(f"the run ended before {parts} parts were written: {process.communicate()[1]}")
            time.sleep(0.01)
        kill(nodes, process)
        _, said = process.communicate()
        if kill is _driver:
            process = begin()
            _, said = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the command failed: {said}")
