"""``python -m benchmarks.streams``: how many 1080p streams are held in real time, and a soak; writes streams.json.

Four cases: classification of every frame, of every fifth, persons before a blurred background, and objects with their
boxes drawn. The method is that of ``onestream bench streams`` and ``onestream bench soak``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.others import streams
from benchmarks.result_files import ROOT, add_out, commit, path_in, this_machine, write
from benchmarks.results import STREAMS
from onestream.measure.capacity import soak
from onestream.measure.capacity.clip import own_clip
from onestream.measure.capacity.streams import StreamsPlan, compare, quiet_numbers

CASES = (("classify", 1, False), ("classify", 5, False), ("matte", 1, False), ("detect", 1, True))
"""Pipelines, of which every so-many-th frame is inferred, and whether boxes are drawn."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write streams.json. Cases that are left out keep what the file has of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run that are counted")
    parser.add_argument("--case", action="append", type=int, choices=range(len(CASES)), help=f"only these of {CASES}")
    parser.add_argument("--soak-minutes", type=float, default=30.0, help="0 leaves the soak out")
    add_out(parser)
    options = parser.parse_args(arguments)
    quiet_numbers()
    machine = this_machine()
    path = path_in(options.out, machine.slug, STREAMS)
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    results["machine"] = machine.model_dump()
    clip = own_clip(ROOT / ".cache" / "benchmarks" / "videos", say=_say)
    for name, stride, draws in [CASES[index] for index in (options.case or range(len(CASES)))]:
        pipeline = ROOT / "pipelines" / f"{name}.yaml"
        plan = StreamsPlan(
            pipeline_file=pipeline,
            clip=clip,
            stride=stride,
            draws=draws,
            rounds=options.rounds,
            duration_s=options.seconds,
        )
        with tempfile.TemporaryDirectory(prefix="onestream-bench-") as folder:
            found = compare(plan, folder=Path(folder), say=_say)
        results["cases"][f"{name}{', drawn' if draws else ''}, every {stride}"] = {"commit": commit(), **found}
        write(path, results)
    if options.soak_minutes:
        endurance = soak.SoakPlan(ROOT / "pipelines" / "classify.yaml", clip, minutes=options.soak_minutes)
        with tempfile.TemporaryDirectory(prefix="onestream-soak-") as folder:
            results["soak"] = {"commit": commit(), **soak.soak(endurance, folder=Path(folder), say=_say)}
        write(path, results)
    print(streams(results))
    print(f"written to {path}")


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
