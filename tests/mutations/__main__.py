"""Plants each fault in a copy of the repository, runs the tests that should find it, and says whether they did.

python tests/mutations [--only NAME ...] [--jobs N] [--timeout-s 180] [--output FILE.json]
python tests/mutations --baseline
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import Queue

from faults import FAULTS, Fault, group_of
from tree_copy import NotPlanted, TreeCopy, check_imports, copy_tree
from tried import Tried, run_tests

ROOT = Path(__file__).resolve().parents[2]
Named = tuple[str, Callable[[TreeCopy], Tried]]
"""What a run is called, and the run itself, in a copy that is as the tree."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where every fault was found, or with --baseline where all tests pass."""
    options = _options(arguments)
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    runs = _baseline(faults, options.timeout_s) if options.baseline else _planted(faults, options.timeout_s)
    wanted = "not found" if options.baseline else "found"
    found = _run_all(runs, jobs=options.jobs, passes=options.baseline)
    about = {} if options.baseline else {fault.name: fault for fault in faults}
    _print_table(found, about, passes=options.baseline)
    if options.output is not None:
        rows = [{**_described(about.get(name)), "name": name, **asdict(tried)} for name, tried in found.items()]
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(tried.outcome != wanted for tried in found.values()))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/mutations", description="Do the tests find planted faults?")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="only the faults of these names")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, each in a copy of its own")
    parser.add_argument("--timeout-s", type=float, default=180.0, help="of one run, in seconds")
    parser.add_argument("--output", type=Path, help="writes the results as JSON")
    parser.add_argument("--baseline", action="store_true", help="runs the tests without any fault: all must pass")
    options = parser.parse_args(arguments)
    if unknown := set(options.only) - {fault.name for fault in FAULTS}:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}")
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    return options


def _planted(faults: Sequence[Fault], timeout_s: float) -> list[Named]:
    """A run for each fault."""

    def of(fault: Fault) -> Named:
        def run(copy: TreeCopy) -> Tried:
            try:
                copy.plant(fault)
            except NotPlanted as error:
                return Tried("error", "", 0.0, str(error))
            return run_tests(copy.folder, fault.tests, slow=fault.slow, timeout_s=timeout_s)

        return fault.name, run

    return [of(fault) for fault in faults]


def _baseline(faults: Sequence[Fault], timeout_s: float) -> list[Named]:
    """A run without a fault for each choice of tests."""

    def of(tests: tuple[str, ...], *, slow: bool) -> Named:
        return " ".join(tests), lambda copy: run_tests(copy.folder, tests, slow=slow, timeout_s=timeout_s)

    return [of(tests, slow=slow) for tests, slow in dict.fromkeys((fault.tests, fault.slow) for fault in faults)]


def _run_all(runs: Sequence[Named], *, jobs: int, passes: bool) -> dict[str, Tried]:
    """What came of each run, in the order of ``runs``; a line is printed as soon as one has ended."""
    found: dict[str, Tried] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as temporary:
        folder = Path(temporary)
        copy_tree(ROOT, folder / "pristine")
        free: Queue[TreeCopy] = Queue()
        for number in range(min(jobs, len(runs))):
            free.put(TreeCopy(folder / "pristine", folder / f"copy-{number}"))
        check_imports(folder / "copy-0")

        def one(run: Callable[[TreeCopy], Tried]) -> Tried:
            copy = free.get()
            try:
                return run(copy)
            finally:
                copy.restore()
                free.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            names = {pool.submit(one, run): name for name, run in runs}
            for done in as_completed(names):
                tried = done.result()
                found[names[done]] = tried
                print(
                    f"{_word(tried, passes=passes):<10} {tried.seconds:6.1f} s  {names[done]}  {tried.test}", flush=True
                )
    return {name: found[name] for name, _ in runs}


def _word(tried: Tried, *, passes: bool) -> str:
    """The outcome in words; of a run without a fault, tests that find nothing pass."""
    return {"not found": "passed", "found": "failed"}.get(tried.outcome, tried.outcome) if passes else tried.outcome


def _described(fault: Fault | None) -> dict[str, object]:
    return {} if fault is None else {"group": group_of(fault.file), "file": fault.file, "tests": list(fault.tests)}


def _print_table(found: dict[str, Tried], about: dict[str, Fault], *, passes: bool) -> None:
    groups: dict[str, Counter[str]] = {}
    for name, tried in found.items():
        group = (group_of(about[name].file) or "") if name in about else "without a fault"
        groups.setdefault(group, Counter())[_word(tried, passes=passes)] += 1
    print()
    for group, counts in groups.items():
        print(f"{group:<30} " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    total = sum(groups.values(), Counter())
    print(f"{'all':<30} " + ", ".join(f"{count} {word}" for word, count in sorted(total.items())))
    for name, tried in found.items():
        if tried.outcome != ("not found" if passes else "found"):
            print(f"\n{name}: {_word(tried, passes=passes)}\n{tried.said}")


if __name__ == "__main__":
    sys.exit(main())
