"""One curve of a plot: medians over rounds, with their quartiles as bars."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from onestream.measure.spread import Spread


def draw_curve(axes: Axes, spreads: Mapping[float, Spread], *, label: str, color: str, marker: str) -> None:
    """Draw the spreads, each at its x."""
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
