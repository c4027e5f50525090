"""The plot: what is answered in time, and how late, against what is offered."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.curve import draw_curve
from benchmarks.overload.results import VARIANTS, OfferedLoad, OverloadResults, Variant
from onestream.measure.spread import Spread

_COLORS: dict[Variant, str] = {"bounded": "#1f6fb4", "unbounded": "#777777"}
_LABELS: dict[Variant, str] = {"bounded": "as generated", "unbounded": "without bounds (max_queue_size: 0)"}


def draw(results: OverloadResults, path: Path) -> None:
    """Write a PNG file."""
    figure = figure_of(results)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def figure_of(results: OverloadResults) -> Figure:
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
            _curve(good, goodput, variant)
            _curve(late, p99, variant)
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


def _curve(axes: Axes, found: dict[float, Spread], variant: Variant) -> None:
    draw_curve(axes, found, label=_LABELS[variant], color=_COLORS[variant], marker="o")
