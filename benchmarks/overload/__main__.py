"""``python -m benchmarks.overload``: half, once, twice and five times what the server can do; writes overload.json."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.overload.measure import OverloadPlan, measure
from benchmarks.overload.plot import draw
from benchmarks.overload.results import FILE_NAME
from benchmarks.overload.table import table
from benchmarks.result_files import ROOT, add_out, path_in, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write overload.json and overload.png."""
    usual = OverloadPlan()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--seconds", type=float, default=usual.duration_s, help="of each run that are counted")
    parser.add_argument("--form", action="append", choices=usual.forms, help="only this one; may be repeated")
    add_out(parser)
    options = parser.parse_args(arguments)
    forms = tuple(options.form or usual.forms)
    plan = OverloadPlan(rounds=options.rounds, duration_s=options.seconds, forms=forms)
    results = measure(plan, cache=ROOT / ".cache" / "benchmarks" / "photos", say=lambda line: print(line, flush=True))
    path = path_in(options.out, results.machine.slug, FILE_NAME)
    write(path, results)
    draw(results, path.with_name("overload.png"))
    print(table(results))
    print(f"written to {path.parent}")


if __name__ == "__main__":
    main()
