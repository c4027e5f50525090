"""The plots: throughput and p99 against concurrency; answers in time, and how late, against what is offered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.photos import Size
from benchmarks.plan import competitors
from benchmarks.results import VARIANTS, OfferedLoad, OverloadResults, Results, Served, Variant, Where
from onestream.measure.spread import Spread

_STYLES = (("#777777", "s"), ("#d98200", "o"), ("#1f6fb4", "D"))
"""Colour and marker of the plain ensemble, of ours, and of our fused form."""
_COLORS: dict[Variant, str] = {"bounded": "#1f6fb4", "unbounded": "#777777"}
_LABELS: dict[Variant, str] = {"bounded": "as generated", "unbounded": "without bounds (max_queue_size: 0)"}


def draw_served(results: Results, path: Path) -> None:
    """Write a PNG file. Points are medians over rounds, bars their quartiles."""
    sizes: list[Size] = list(dict.fromkeys(one.size for one in results.served))
    figure, grid = plt.subplots(
        2, len(sizes), figsize=(4.9 * len(sizes) + 0.6, 7.2), sharex=True, squeeze=False, layout="constrained"
    )
    for column, size in enumerate(sizes):
        throughput, tail = grid[0][column], grid[1][column]
        _curves(throughput, results, size, "inferences_per_s")
        _curves(tail, results, size, "p99_ms")
        limit = results.limit(size)
        if limit:
            most = Spread.of(list(limit.values())).median
            throughput.axhline(most, color="black", linestyle=":", linewidth=1.2, label="in process")
            throughput.set_ylim(top=max(throughput.get_ylim()[1], most * 1.05))
        throughput.set_title(f"{size.replace('x', '×')} JPEG", fontsize=12)
        tail.set_xlabel("requests in flight")
    grid[0][0].set_ylabel("images per second (more is better)")
    grid[1][0].set_ylabel("p99 latency, ms (less is better)")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(f"{results.machine.cpu}, {results.machine.cores} cores, gRPC", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _curves(axes: Axes, results: Results, size: Size, quantity: str) -> None:
    def value(one: Served) -> float:
        return float(getattr(one.export, quantity))

    loads = [load for load in results.loads(size) if load.kind == "concurrency"]
    for competitor, (color, marker) in zip(competitors(results.pipeline), _STYLES, strict=True):
        found = {load.value: results.rounds_of(value, competitor, Where(size, load)) for load in loads}
        spreads = {float(at): Spread.of(list(rounds.values())) for at, rounds in found.items() if rounds}
        _curve(axes, spreads, label=competitor, color=color, marker=marker)
    axes.set_xscale("log", base=2)
    axes.set_xticks([load.value for load in loads], [str(load.value) for load in loads])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def draw_overload(results: OverloadResults, path: Path) -> None:
    """Write a PNG file."""
    figure = overload_figure(results)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def overload_figure(results: OverloadResults) -> Figure:
    """A column for each form. Points are medians over rounds, bars their quartiles.

    Where no request was answered in time there is no latency, but a cross on the line of the deadline.
    """
    figure: Figure
    figure, grid = plt.subplots(
        2,
        len(results.forms),
        figsize=(4.9 * len(results.forms) + 0.6, 7.4),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    deadline_ms, most = 1000 * results.deadline_s, max(results.shares)
    for column, form in enumerate(results.forms):
        good, late = grid[0][column], grid[1][column]
        good.plot([0, 1, most], [0, 1, 1], color="black", linestyle=":", linewidth=1.2, label="ideal")
        late.axhline(deadline_ms, color="#b03030", linestyle="--", linewidth=1.2, label="deadline")
        for variant in VARIANTS:
            goodput, p99 = _goodput(results, form, variant), _p99_ms(results, form, variant)
            _curve(good, goodput, label=_LABELS[variant], color=_COLORS[variant], marker="o")
            _curve(late, p99, label=_LABELS[variant], color=_COLORS[variant], marker="o")
            silent = [share for share in goodput if share not in p99]
            if silent:
                at = [deadline_ms] * len(silent)
                late.plot(silent, at, "x", color=_COLORS[variant], markersize=9, markeredgewidth=2.2, clip_on=False)
        good.set_title(form, fontsize=12)
        good.set_xlim(0, 1.04 * most)
        good.set_ylim(0, max(1.1, good.get_ylim()[1]))
        late.set_ylim(0, 1.1 * deadline_ms)
        late.set_xlabel("offered ÷ capacity")
        for axes in (good, late):
            axes.set_xticks(results.shares, [f"{share:g}" for share in results.shares])
            axes.tick_params(labelbottom=True)
            axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("answered in time ÷ capacity\n(more is better)")
    grid[1][0].set_ylabel("p99 of these answers, ms\n(less is better; ×: no answer in time)")
    handles, names = grid[0][0].get_legend_handles_labels()
    more, others = grid[1][0].get_legend_handles_labels()
    handles, names = [*handles, more[others.index("deadline")]], [*names, "deadline"]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    where = f"{results.machine.cpu}, server on {results.server_cores} of {results.machine.cores} cores, gRPC"
    figure.suptitle(where, fontsize=11)
    return figure


def _goodput(results: OverloadResults, form: str, variant: Variant) -> dict[float, Spread]:
    def value(one: OfferedLoad) -> float:
        return one.goodput_per_s / one.capacity_per_s

    rounds = {share: results.of(form, variant, share) for share in results.shares}
    return {share: Spread.of([value(one) for one in points]) for share, points in rounds.items() if points}


def _p99_ms(results: OverloadResults, form: str, variant: Variant) -> dict[float, Spread]:
    known = {
        share: [one.p99_ms for one in results.of(form, variant, share) if one.p99_ms is not None]
        for share in results.shares
    }
    return {share: Spread.of(values) for share, values in known.items() if values}


def _curve(axes: Axes, spreads: Mapping[float, Spread], *, label: str, color: str, marker: str) -> None:
    """One curve: medians over rounds, each at its x, with their quartiles as bars."""
    medians = [spread.median for spread in spreads.values()]
    below = [spread.median - spread.low for spread in spreads.values()]
    above = [spread.high - spread.median for spread in spreads.values()]
    axes.errorbar(
        list(spreads),
        medians,
        yerr=(below, above),
        label=label,
        capsize=3,
        linewidth=1.8,
        color=color,
        marker=marker,
    )
