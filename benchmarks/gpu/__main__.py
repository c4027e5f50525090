"""``python -m benchmarks.gpu``: measure on the GPU of this machine, print one table and write gpu.json."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.gpu.fused import measure_fused
from benchmarks.gpu.measure import reason
from benchmarks.gpu.preprocessing import measure_preprocessing
from benchmarks.gpu.results import FILE_NAME, GpuResults, Kept, PhotoSet, library_versions
from benchmarks.gpu.served import measure_served, why_not
from benchmarks.gpu.setup import PARTS, GpuPlan, Setup, set_up
from benchmarks.photos import SEED, SIZES
from benchmarks.report.gpu import full
from benchmarks.result_files import ROOT, Run, add_out, begin, path_in
from onestream.preprocess.cuda.device import open_device
from onestream.preprocess.errors import PreprocessError
from onestream.serving.pipeline import Pipeline

UNPUBLISHED = ROOT / ".cache" / "benchmarks" / "results"
"""Where a run of some parts goes, so that it does not replace published results."""


def main() -> int:
    """Run; returns the exit status, 1 where there is no GPU or a competitor disagreed with the reference."""
    options = _options()
    try:
        device = open_device()
    except PreprocessError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 1
    begun = begin()
    setup = set_up(
        _plan(options),
        device,
        cores=len(os.sched_getaffinity(0)),
        pipeline=Pipeline.from_file(ROOT / "pipelines" / "classify.yaml"),
        network=options.network,
        repository=ROOT / "model_repository",
        photos_folder=ROOT / "examples" / "photos",
        progress=_say,
    )
    folder = options.out or (UNPUBLISHED if options.only or options.sizes else None)
    about = _about(setup, begun.model_copy(update={"commit": options.commit or begun.commit}))
    path = path_in(folder, about.slug, FILE_NAME)
    results = measure_all(setup, about, path)
    print(full(results))
    print(f"written to {path}")
    return 0 if all(one.agrees for one in results.agreement) else 1


def measure_all(setup: Setup, results: GpuResults, path: Path) -> GpuResults:
    """Measure the parts of the plan, the fused form first: where time or a library ends, the most is known."""
    kept = Kept(results, path, setup.missing)
    if "fused" in setup.plan.parts:
        measure_fused(setup, kept)
    with ExitStack() as opened:
        if "preprocess" in setup.plan.parts:
            measure_preprocessing(setup, opened, kept)
    if "served" in setup.plan.parts:
        _served(setup, kept)
    # With what is missing.
    kept.add()
    return kept.results


def _served(setup: Setup, kept: Kept) -> None:
    missing = why_not() if setup.network else "the network is not built; run: onestream build"
    if missing is None:
        try:
            measure_served(setup, kept=kept, device="gpu")
            return
        except Exception as error:  # a server that does not start, a request that fails: the rest was measured
            missing = reason(error)
    setup.missing["served"] = missing


def _about(setup: Setup, begun: Run) -> GpuResults:
    return GpuResults(
        **begun.model_dump() | {"versions": library_versions()},
        gpu=setup.device.name,
        compute_capability=setup.device.compute_capability,
        cores=setup.cores,
        seed=SEED,
        rounds=setup.plan.rounds,
        duration_s=setup.plan.duration_s,
        photos=[
            PhotoSet(
                size=one.size,
                count=len(one.contents),
                mean_kilobytes=round(sum(map(len, one.contents)) / len(one.contents) / 1000, 1),
            )
            for one in setup.photos
        ],
    )


def _plan(options: argparse.Namespace) -> GpuPlan:
    return GpuPlan(
        parts=tuple(part for part in PARTS if part in (options.only or PARTS)),
        sizes=tuple(options.sizes or SIZES),
        settings=options.settings,
        batches=tuple(sorted(set(options.batches))),
        fused_batches=tuple(sorted(set(options.fused_batches))),
        rounds=options.rounds,
        duration_s=options.seconds,
        served_s=options.served_seconds,
        minutes=options.minutes,
        photos=options.photos,
        compared=min(GpuPlan().compared, options.photos),
    )


def _say(line: str) -> None:
    print(f"[{datetime.now(timezone.utc):%H:%M:%S}] {line}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    default = GpuPlan()
    network = ROOT / "model_repository" / "classify_fused" / "1" / "model.onnx"
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given several times")
    parser.add_argument("--sizes", nargs="+", choices=(*SIZES, "mixed"), help="of the photos")
    parser.add_argument("--settings", default="", help="a pattern: of the ways to preprocess, those it is found in")
    parser.add_argument("--batches", type=_positive, nargs="+", default=default.batches, help="of preprocessing")
    parser.add_argument("--fused-batches", type=_positive, nargs="+", default=default.fused_batches)
    parser.add_argument("--rounds", type=_positive, default=default.rounds)
    parser.add_argument("--seconds", type=float, default=default.duration_s, help="of one measurement")
    parser.add_argument("--served-seconds", type=float, default=default.served_s, help="of one of a served model")
    parser.add_argument("--minutes", type=float, default=default.minutes, help="after which no further round begins")
    parser.add_argument("--photos", type=_positive, default=default.photos, help="made of each size")
    parser.add_argument("--network", type=Path, default=network, help="the served network, as onestream build makes it")
    add_out(parser)
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text}")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
