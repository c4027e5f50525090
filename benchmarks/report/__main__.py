"""``python -m benchmarks.report``: write the tables of docs/results.md, README.md and docs/security.md anew.

What stands between the two marker lines of each page is replaced. ``--check`` writes nothing and exits with 1 where a
page differs from the result files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.competitors import CONTESTS
from benchmarks.gpu.results import FILE_NAME as GPU
from benchmarks.gpu.results import GpuResults
from benchmarks.report import gpu, hostile, others, overload, patches, served, summary
from benchmarks.report.pages import rewrite
from benchmarks.result_files import RESULTS, ROOT, Raw, read
from benchmarks.results import (
    AUGMENTATION,
    BOXES,
    ENGINES,
    FILE_NAME,
    HOSTILE,
    OVERLOAD,
    PATCHES,
    QUANTIZATION,
    READING,
    SCALE_OUT,
    STREAMS,
    TRAINING,
    VIDEO,
    LoaderResults,
    OverloadResults,
    ReadingResults,
    Results,
    TrainingResults,
)

_LINK = "../benchmarks/results"


def every_table(folder: Path) -> str:
    """The tables of docs/results.md."""
    blocks = [
        summary.table(folder),
        *(served.summary(read(folder, one.file(FILE_NAME), Results), link_to=_LINK) for one in CONTESTS.values()),
        *map(others.training, read(folder, TRAINING, TrainingResults)),
        *map(others.augmentation, read(folder, AUGMENTATION, LoaderResults)),
        *map(others.video, read(folder, VIDEO, Raw)),
        *map(others.streams, read(folder, STREAMS, Raw)),
        *map(others.boxes, read(folder, BOXES, Raw)),
        *map(others.reading, read(folder, READING, ReadingResults)),
        *(overload.with_plot(one, link_to=_LINK) for one in read(folder, OVERLOAD, OverloadResults)),
        *map(others.quantization, read(folder, QUANTIZATION, Raw)),
        *map(others.engines, read(folder, ENGINES, Raw)),
        *map(patches.patches, read(folder, PATCHES, Raw)),
        *map(others.scale_out, read(folder, SCALE_OUT, Raw)),
        gpu.summaries(read(folder, GPU, GpuResults)),
    ]
    return "\n".join(block for block in blocks if block)


def hostile_runs(folder: Path) -> str:
    """The table of docs/security.md."""
    return "\n".join(map(hostile.table, read(folder, HOSTILE, Raw)))


PAGES: dict[str, Callable[[Path], str]] = {
    "docs/results.md": every_table,
    "README.md": summary.headlines,
    "docs/security.md": hostile_runs,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page differs")
    options = parser.parse_args(arguments)
    action = "--check" if options.check else "--write"
    return max(
        rewrite(table, [action, str(ROOT / page)], command="python -m benchmarks.report", results=RESULTS)
        for page, table in PAGES.items()
    )


if __name__ == "__main__":
    raise SystemExit(main())
