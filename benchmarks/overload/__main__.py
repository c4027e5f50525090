"""``python -m benchmarks.overload``: half, once, twice and five times a server's capacity, whether it answers or not.

The load comes from this process, on a core of its own where there are two; the server has the others.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.overload.offered import Outcome, capacity, offer, percentile
from benchmarks.photos import PhotoSet, photo_set
from benchmarks.report.overload import table
from benchmarks.report.plots import draw_overload
from benchmarks.result_files import ROOT, add_out, begin, path_in, write
from benchmarks.results import OVERLOAD, PACKAGES, VARIANTS, Capacity, OfferedLoad, OverloadResults, Variant
from benchmarks.rounds import Plan
from onestream.serving.building.build import build
from onestream.serving.server.server import Server

_SEED = 1
_WARM_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadPlan(Plan):
    """``deadline_s``: what a caller waits at most; an answer after it is worth nothing to him."""

    rounds: int = 3
    duration_s: float = 8.0
    deadline_s: float = 1.0
    shares: Sequence[float] = (0.5, 1.0, 2.0, 5.0)
    forms: Sequence[str] = ("classify", "classify_fused")


def measure(plan: OverloadPlan, *, cache: Path, say: Callable[[str], None]) -> OverloadResults:
    """Run the plan."""
    cores = sorted(os.sched_getaffinity(0))
    server_cores, load_cores = cores[:-1] or cores, cores[-1:]
    about = begin(PACKAGES)
    photos = photo_set("500x375", folder=cache)
    points: list[OfferedLoad] = []
    capacities: list[Capacity] = []
    with tempfile.TemporaryDirectory(prefix="onestream-overload-") as folder:
        for variant in VARIANTS:
            _build(Path(folder) / variant, variant)
        try:
            for number in range(plan.rounds):
                for form in plan.forms:
                    os.sched_setaffinity(0, cores)
                    capacities += _capacities(plan, number, form, Path(folder), photos, cores, say)
                    os.sched_setaffinity(0, load_cores)
                    points += _round(plan, number, form, Path(folder), photos, server_cores, say)
        finally:
            os.sched_setaffinity(0, cores)
    return OverloadResults(
        **about.model_dump(),
        server_cores=len(server_cores),
        load_cores=len(load_cores) if len(cores) > 1 else 0,
        rounds=plan.rounds,
        seconds=plan.duration_s,
        deadline_s=plan.deadline_s,
        capacities=capacities,
        points=points,
    )


def _capacities(
    plan: OverloadPlan,
    number: int,
    form: str,
    folder: Path,
    photos: PhotoSet,
    cores: Sequence[int],
    say: Callable[[str], None],
) -> Iterator[Capacity]:
    """What bounds cost where nothing is overloaded: server and load share all cores."""
    for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
        with _serving(folder / variant, form, cores) as address:
            per_s = capacity(address, form, photos.contents, seconds=plan.duration_s, warm_s=_WARM_S)
        say(f"round {number + 1}, {form}, {variant}: {per_s:.0f} images/s on all cores")
        yield Capacity(round=number, form=form, variant=variant, per_s=per_s)


def _round(
    plan: OverloadPlan,
    number: int,
    form: str,
    folder: Path,
    photos: PhotoSet,
    server_cores: Sequence[int],
    say: Callable[[str], None],
) -> Iterator[OfferedLoad]:
    # What is 100 % is the same for both.
    with _serving(folder / "bounded", form, server_cores) as address:
        most = capacity(address, form, photos.contents, seconds=plan.duration_s, warm_s=_WARM_S)
    say(f"round {number + 1}, {form}: capacity {most:.0f} images/s")
    for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
        for share in plan.shares:
            # Each has a server of its own: what an overload left in the queues is not the next one's.
            with _serving(folder / variant, form, server_cores) as address:
                outcome = offer(
                    address,
                    form,
                    photos.contents,
                    rate_per_s=share * most,
                    seconds=plan.duration_s,
                    deadline_s=plan.deadline_s,
                    seed=_SEED + number,
                    warm_s=_WARM_S,
                )
            point = point_of(outcome, number=number, form=form, variant=variant, share=share, capacity=most)
            say(f"  {point}")
            yield point


def point_of(
    outcome: Outcome, *, number: int, form: str, variant: Variant, share: float, capacity: float
) -> OfferedLoad:
    """What the file keeps of an outcome."""
    return OfferedLoad(
        round=number,
        form=form,
        variant=variant,
        share=share,
        capacity_per_s=capacity,
        offered_per_s=outcome.offered / outcome.seconds,
        goodput_per_s=outcome.goodput_per_s,
        refused_per_s=len(outcome.refused_ms) / outcome.seconds,
        expired_per_s=outcome.expired / outcome.seconds,
        failed=outcome.failed,
        failure=outcome.failure,
        sent_late=outcome.sent_late,
        p50_ms=percentile(outcome.answered_ms, 0.5),
        p99_ms=percentile(outcome.answered_ms, 0.99),
        refused_p50_ms=percentile(outcome.refused_ms, 0.5),
        refused_p99_ms=percentile(outcome.refused_ms, 0.99),
    )


def _build(folder: Path, variant: Variant) -> None:
    pipeline = ROOT / "pipelines" / "classify.yaml"
    fields = yaml.safe_load(pipeline.read_text(encoding="utf-8"))
    if variant == "unbounded":
        fields["serving"]["max_queue_size"] = 0
    folder.mkdir(parents=True)
    (folder / pipeline.name).write_text(yaml.safe_dump(fields), encoding="utf-8")
    build(folder / pipeline.name, folder=folder / "repository")


@contextmanager
def _serving(folder: Path, form: str, cores: Sequence[int]) -> Iterator[str]:
    """A server on these cores, which it inherits."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    server = Server(folder / "repository", http_port=0, grpc_port=0, metrics_port=0, device="cpu", models=[form])
    with server:
        os.sched_setaffinity(0, own)
        yield server.grpc_address


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
    path = path_in(options.out, results.machine.slug, OVERLOAD)
    write(path, results)
    draw_overload(results, path.with_name("overload.png"))
    print(table(results))
    print(f"written to {path.parent}")


if __name__ == "__main__":
    main()
