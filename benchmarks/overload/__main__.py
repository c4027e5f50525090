"""``python -m benchmarks.overload``: half, once, twice and five times what the server can do; writes overload.json."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.overload.measure import ROOT, Plan, measure
from benchmarks.overload.plot import draw
from benchmarks.overload.results import FILE_NAME
from benchmarks.overload.table import table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write overload.json and overload.png."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="of each run that are counted")
    parser.add_argument("--form", action="append", choices=usual.forms, help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write; without it benchmarks/results")
    options = parser.parse_args(arguments)
    plan = Plan(rounds=options.rounds, seconds=options.seconds, forms=tuple(options.form or usual.forms))
    results = measure(plan, cache=ROOT / ".cache" / "benchmarks" / "photos", say=lambda line: print(line, flush=True))
    folder: Path = (options.out or ROOT / "benchmarks" / "results") / results.machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(results.model_dump_json(indent=1) + "\n")
    draw(results, folder / "overload.png")
    print(table(results))
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
