"""The table of overload in docs/results.md."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report.pages import markdown
from benchmarks.results import VARIANTS, OfferedLoad, OverloadResults, Variant
from onestream.measure.spread import Spread
from onestream.measure.tables import NOT_MEASURED

_LATE_WORTH_TELLING = 0.01
_HEAD = (
    *("served", "queues", "offered ÷ capacity", "answered in time ÷ capacity", "p99 of these, ms", "refused /s"),
    *("p50 of refusals, ms", "p99 of refusals, ms", "too late /s"),
)
_QUEUES: dict[Variant, str] = {"bounded": "as generated", "unbounded": "`max_queue_size: 0`"}


def with_plot(results: OverloadResults, *, link_to: str) -> str:
    """The table and the plot. ``link_to`` is the folder of results, as the page's links name it."""
    picture = f"{link_to}/{results.machine.slug}/overload.png"
    return f"{table(results)}\n![Answered in time, and p99, against what is offered]({picture})\n"


def table(results: OverloadResults) -> str:
    """A row for each form, configuration and load; below it what else went wrong, if anything did."""
    where = (
        f"the server on {_cores(results.server_cores)}, the load on {_cores(results.load_cores)} of its own"
        if results.load_cores
        else f"server and load on {_cores(results.server_cores)}"
    )
    count = "One round" if results.rounds == 1 else f"Median (quartiles) of {results.rounds} rounds"
    about = (
        f"Offered more than the server can do: requests by gRPC at random moments, whether earlier ones were answered "
        f"or not, each worth nothing after {results.deadline_s:g} s; {where}; {results.dated}. "
        f"{count} of {results.seconds:g} s.\n"
    )
    rows = [
        _row(form, variant, share, rounds)
        for form in results.forms
        for variant in VARIANTS
        for share in results.shares
        if (rounds := results.of(form, variant, share))
    ]
    return "\n".join([about, markdown(_HEAD, rows), *(f"{remark}\n" for remark in _remarks(results))])


def _remarks(results: OverloadResults) -> list[str]:
    """Paragraphs about what bounds cost, about failures, and about a load generator that could not keep up."""
    costs = ", ".join(f"{form} {results.cost(form).text(2)}" for form in results.forms)
    remarks = [f"Images/s of 8 callers who wait for answers, all cores, with bounds ÷ without: {costs}."]
    failed = [one for one in results.points if one.failed]
    if failed:
        remarks.append(f"{sum(one.failed for one in failed)} requests failed otherwise: {failed[0].failure}")
    late = max(one.sent_late / max(1, one.offered_per_s * results.seconds) for one in results.points)
    if late > _LATE_WORTH_TELLING:
        remarks.append(f"Up to {late:.0%} of a run's requests left the load generator more than 50 ms late.")
    return remarks


def _row(form: str, variant: Variant, share: float, rounds: list[OfferedLoad]) -> list[str]:
    return [
        form,
        _QUEUES[variant],
        f"{share:g}",
        _spread(rounds, lambda one: one.goodput_per_s / one.capacity_per_s, 2),
        _spread(rounds, lambda one: one.p99_ms, 0),
        _spread(rounds, lambda one: one.refused_per_s, 0),
        _spread(rounds, lambda one: one.refused_p50_ms, 1),
        _spread(rounds, lambda one: one.refused_p99_ms, 1),
        _spread(rounds, lambda one: one.expired_per_s, 0),
    ]


def _spread(rounds: list[OfferedLoad], value: Callable[[OfferedLoad], float | None], digits: int) -> str:
    found = [number for one in rounds if (number := value(one)) is not None]
    return Spread.of(found).text(digits) if found else NOT_MEASURED


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"
