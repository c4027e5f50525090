"""``python -m benchmarks``: measure a pipeline, then write results.json, tables.md and a plot."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from benchmarks.competitors import CLASSIFY, CONTESTS
from benchmarks.photos import PhotosMissing
from benchmarks.plan import FULL, QUICK
from benchmarks.report import served
from benchmarks.report.plots import draw_served
from benchmarks.result_files import add_out, path_in, write
from benchmarks.results import FILE_NAME
from benchmarks.run import CACHE, PARTS, run
from onestream.measure.agreement import Disagreement
from onestream.measure.load.perf_analyzer import PerfAnalyzerError
from onestream.serving.server.errors import ServerError


def main() -> int:
    """Run the benchmarks; returns the exit status."""
    options = _options()
    contest = CONTESTS[options.pipeline]
    plan = QUICK if options.quick else FULL
    plan = replace(plan, rounds=options.rounds or plan.rounds, sizes=tuple(options.size or contest.sizes))
    parts = tuple(options.only or PARTS)
    complete = plan == replace(FULL, rounds=plan.rounds, sizes=contest.sizes) and parts == PARTS
    try:
        results = run(plan, contest, parts=parts, progress=lambda line: print(line, flush=True))
    except (PerfAnalyzerError, Disagreement, PhotosMissing, ServerError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    # A partial run does not replace published results.
    path = path_in(
        options.out or (None if complete else CACHE / "results"), results.machine.slug, contest.file(FILE_NAME)
    )
    write(path, results)
    path.with_name(contest.file("tables.md")).write_text(served.full(results))
    if results.served:
        draw_served(results, path.with_name(contest.file("throughput.png")))
    print(served.full(results))
    print(f"written to {path.parent}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--pipeline", choices=CONTESTS, default=CLASSIFY.name, help="what is measured; its results have their own files"
    )
    parser.add_argument("--quick", action="store_true", help="a few minutes instead of half an hour; for a first look")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds, of which medians are taken")
    sizes = list(dict.fromkeys(size for contest in CONTESTS.values() for size in contest.sizes))
    parser.add_argument("--size", action="append", choices=sizes, help="measure this size only; repeatable")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part only; repeatable")
    add_out(parser, else_where="benchmarks/results, or .cache/benchmarks/results where not all is measured")
    options = parser.parse_args()
    own = CONTESTS[options.pipeline].sizes
    if wrong := set(options.size or ()) - set(own):
        parser.error(f"{options.pipeline} is measured at {', '.join(own)}, not at {', '.join(sorted(wrong))}")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
