"""The plot: what is answered in time, and how late, against what is offered."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.overload.results import VARIANTS, Results, Variant
from onestream.load.spread import Spread

_COLORS: dict[Variant, str] = {"bounded": "#1f6fb4", "unbounded": "#777777"}
_LABELS: dict[Variant, str] = {"bounded": "as generated", "unbounded": "max_queue_size: 0"}


def draw(results: Results, path: Path) -> None:
    """Write a PNG file. Points are medians over rounds, bars their quartiles; what has no answer has no latency."""
    figure, grid = plt.subplots(
        2, len(results.forms), figsize=(4.9 * len(results.forms) + 0.6, 7.0), squeeze=False, layout="constrained"
    )
    for column, form in enumerate(results.forms):
        good, late = grid[0][column], grid[1][column]
        top = max(results.shares)
        good.plot([0, 1, top], [0, 1, 1], color="black", linestyle=":", linewidth=1.2, label="ideal")
        for variant in VARIANTS:
            _curve(good, results, form, variant, "goodput")
            _curve(late, results, form, variant, "p99_ms")
        late.axhline(1000 * results.deadline_s, color="#b03030", linestyle="--", linewidth=1.2, label="deadline")
        good.set_title(form, fontsize=12)
        good.set_ylim(bottom=0)
        late.set_ylim(bottom=0)
        late.set_xlabel("offered ÷ capacity")
        for axes in (good, late):
            axes.set_xticks(results.shares, [f"{share:g}" for share in results.shares])
            axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("answered in time ÷ capacity (more is better)")
    grid[1][0].set_ylabel("p99 of answers, ms (less is better)")
    handles, names = grid[0][0].get_legend_handles_labels()
    more, others = grid[1][0].get_legend_handles_labels()
    handles, names = [*handles, more[others.index("deadline")]], [*names, "deadline"]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(f"{results.machine.cpu}, server on {results.server_cores} of {results.machine.cores} cores")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _curve(axes: Axes, results: Results, form: str, variant: Variant, quantity: str) -> None:
    found: dict[float, Spread] = {}
    for share in results.shares:
        rounds = results.of(form, variant, share)
        values = [one.goodput_per_s / one.capacity_per_s if quantity == "goodput" else one.p99_ms for one in rounds]
        known = [value for value in values if value is not None]
        if known:
            found[share] = Spread.of(known)
    medians = [spread.median for spread in found.values()]
    below = [spread.median - spread.low for spread in found.values()]
    above = [spread.high - spread.median for spread in found.values()]
    axes.errorbar(
        list(found),
        medians,
        yerr=(below, above),
        label=_LABELS[variant],
        capsize=3,
        linewidth=1.8,
        color=_COLORS[variant],
        marker="o",
    )
