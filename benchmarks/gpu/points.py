"""Figures as lines of one file: each is on the disk before the next is measured, so that a crash loses none."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.photos import SEED, SIZES, make_photos
from benchmarks.result_files import ROOT


class Points:
    """Appends to ``path``, which several processes may fill one after the other, and prints what it appends."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def add(self, **point: object) -> None:
        """Write one figure, with what it is of."""
        line = json.dumps(point)
        with self._path.open("a") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())
        print(line, flush=True)

    def fail(self, error: Exception, **point: object) -> None:
        """Write what could not be measured, and why."""
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        self.add(**point, failed=first[:400])


def photos_of(size: str, count: int, *, threads: int) -> list[bytes]:
    """Photos of the checkout's own, always the same."""
    sources = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
    return make_photos(size, count, sources=sources, seed=SEED, threads=threads)  # type: ignore[arg-type]


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options that all such commands have."""
    made = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    made.add_argument("--points", type=Path, required=True, help="the file to append figures to, one a line")
    made.add_argument("--sizes", nargs="+", default=[*SIZES], help="of the pictures, WIDTHxHEIGHT")
    return made


def no_gpu(program: str, error: Exception) -> int:
    """Say it; the exit status."""
    print(f"{program}: {error}", file=sys.stderr)
    return 1
