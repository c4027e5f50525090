"""The plot: throughput and p99 against concurrency, one column for each size of photo."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from benchmarks.curve import draw_curve
from benchmarks.photos import Size
from benchmarks.plan import competitors
from benchmarks.results import Results, Served, Where
from onestream.measure.spread import Spread

_STYLES = (("#777777", "s"), ("#d98200", "o"), ("#1f6fb4", "D"))
"""Colour and marker of the plain ensemble, of ours, and of our fused form."""


def draw(results: Results, path: Path) -> None:
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
        draw_curve(axes, spreads, label=competitor, color=color, marker=marker)
    axes.set_xscale("log", base=2)
    axes.set_xticks([load.value for load in loads], [str(load.value) for load in loads])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
