"""``python -m benchmarks.scale_out``: ``onestream bulk --ray`` on this machine, beside its limit and beside a server.

*rates*: in every round one directly after the other, for photos of one size: what the fused form executes, without
Ray, in one process per core (``in_process``); ``onestream bulk --ray``, whose rate is counted from its first complete
part to its last, so without the start of its workers; ``onestream bulk`` against a server on this machine, by its own
summary. *memory*: the most that the process of the command holds, for lists of names that lead nowhere.

Both go into scale-out.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import in_process
from benchmarks.photos import SIZES, Size, photo_set
from benchmarks.report.others import scale_out
from benchmarks.result_files import ROOT, Raw, add_out, begin, path_in, write
from benchmarks.results import BULK, IN_PROCESS, ON_RAY, SCALE_OUT
from benchmarks.rounds import rotated
from onestream.serving.building.build import build
from onestream.serving.server.server import Server

_PHOTOS = Path(".cache", "benchmarks", "photos")
_FILES_PER_PART = 250
"""Enough parts to tell the rate by, and nearer to the usual 1,000: Ray Data takes about 0.1 s of CPU for each part."""
_NAMES = (10_000, 1_000_000)
_DURATION_S = 10.0


def rates(models: Path, size: Size, *, images: int, rounds: int, folder: Path) -> list[dict[str, float]]:
    """Images/s of each round, by what made them. ``folder`` is for what is written on the way."""
    photos = photo_set(size, folder=_PHOTOS).contents
    source = folder / "photos"
    source.mkdir()
    for number in range(images):
        (source / f"{number:06}.jpg").write_bytes(photos[number % len(photos)])

    def alone() -> float:
        found = in_process.measure(
            models / "classify_fused",
            photos,
            batches=(4,),
            processes=len(os.sched_getaffinity(0)),
            duration_s=_DURATION_S,
        )
        return found[4]

    def on_ray() -> float:
        out = folder / "out"
        _bulk(source, "--to", out, "--overwrite", "--ray", "--repository", models, "--files-per-part", _FILES_PER_PART)
        times = sorted(part.stat().st_mtime for part in out.glob("part-*"))
        return _FILES_PER_PART * (len(times) - 1) / (times[-1] - times[0])

    def by_server() -> float:
        with Server(models, http_port=0, grpc_port=0, metrics_port=0, models=["classify_fused"]) as server:
            options = ("--pipeline", "classify_fused", "--url", server.grpc_address)
            said = _bulk(source, "--to", folder / "out.parquet", "--overwrite", *options)
        return float(re.findall(r"(\d+) images/s", said)[-1])

    ways: dict[str, Callable[[], float]] = {IN_PROCESS: alone, ON_RAY: on_ray, BULK: by_server}
    found = []
    for number in range(rounds):
        one = {name: ways[name]() for name in rotated([*ways], number)}
        print(json.dumps(one), flush=True)
        found.append(one)
    return found


def memory(models: Path, folder: Path) -> dict[str, int]:
    """The peak resident size of the command's process in bytes, by the number of names in its list."""
    found = {}
    for count in _NAMES:
        names = "".join(f"nowhere/{number}.jpg\n" for number in range(count))
        options = ("--to", folder / "out", "--overwrite", "--ray", "--repository", models, "--format", "jsonl")
        command = [sys.executable, "-c", _WITH_PEAK, "bulk", "-", *map(str, options)]
        done = subprocess.run(command, cwd=ROOT, input=names, capture_output=True, text=True)
        peaks = re.findall(r"^peak (\d+)$", done.stdout, flags=re.MULTILINE)
        if f"{count} images" not in done.stderr or len(peaks) != 1:
            raise RuntimeError(f"the command failed: {done.stderr}")
        found[str(count)] = int(peaks[0])
    return found


def main() -> None:
    """Measure, print the table, and write scale-out.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_out", description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="1920x1080")
    parser.add_argument("--images", type=int, default=3000, help="images of each run")
    parser.add_argument("--rounds", type=int, default=5)
    add_out(parser)
    options = parser.parse_args()
    about = begin(("ray", "pyarrow", "numpy", "nvidia-dali-cuda120", "onnxruntime"))
    with tempfile.TemporaryDirectory(prefix="onestream-scale-") as name:
        folder = Path(name)
        models = folder / "models"
        build(ROOT / "pipelines" / "classify.yaml", folder=models)
        held = memory(models, folder)
        print(json.dumps(held), flush=True)
        results: Raw = {
            **about.model_dump(),
            "size": options.size,
            "images": options.images,
            "memory_bytes": held,
            "rounds": rates(models, options.size, images=options.images, rounds=options.rounds, folder=folder),
        }
    path = path_in(options.out, about.machine.slug, SCALE_OUT)
    write(path, results)
    print(f"{scale_out(results)}\nwritten to {path}")


def _bulk(*arguments: object) -> str:
    """What the command says on standard error. Raises RuntimeError where it fails."""
    command = [sys.executable, "-m", "onestream", "bulk", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the command failed: {done.stderr}")
    return done.stderr


_WITH_PEAK = """
import sys
from onestream.cli.main import app
try:
    app(sys.argv[1:])
finally:
    lines = open("/proc/self/status").read().splitlines()
    print("peak", next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""
"""The command, which says at its end how much its process held; getrusage begins with its parent's peak."""


if __name__ == "__main__":
    main()
