"""``python -m benchmarks``: measure, then write results.json, tables.md and a plot."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import plot, tables
from benchmarks.agreement import Disagreement
from benchmarks.competitors import ROOT
from benchmarks.photos import SIZES, PhotosMissing
from benchmarks.plan import FULL, QUICK
from benchmarks.results import FILE_NAME
from benchmarks.run import CACHE, PARTS, run
from onestream.measure.load.perf_analyzer import PerfAnalyzerError
from onestream.serving.server.errors import ServerError

RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    """Run the benchmarks; returns the exit status."""
    options = _options()
    plan = QUICK if options.quick else FULL
    plan = replace(plan, rounds=options.rounds or plan.rounds, sizes=tuple(options.size or SIZES))
    parts = tuple(options.only or PARTS)
    complete = plan == replace(FULL, rounds=plan.rounds) and parts == PARTS
    try:
        results = run(plan, parts=parts, progress=lambda line: print(line, flush=True))
    except (PerfAnalyzerError, Disagreement, PhotosMissing, ServerError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    # A partial run does not replace published results.
    folder = (options.out or (RESULTS if complete else CACHE / "results")) / results.machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(results.model_dump_json(indent=1) + "\n")
    (folder / "tables.md").write_text(tables.full(results))
    if results.served:
        plot.draw(results, folder / "throughput.png")
    print(tables.full(results))
    print(f"written to {folder}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes instead of half an hour; for a first look")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds, of which medians are taken")
    parser.add_argument("--size", action="append", choices=SIZES, help="measure this size only; repeatable")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part only; repeatable")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where to write; without it benchmarks/results, or .cache/benchmarks/results where not all is measured",
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
