"""The plot: images/s of every setting relative to the defaults, and its p99."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from onestream.measure.tune.report import Report
from onestream.measure.tune.table import about_images, name, title

_CHOSEN, _OTHER = "#1f6fb4", "#777777"


def draw(report: Report, path: Path) -> None:
    """Write a PNG (or what the suffix says) with a line for each setting that was measured, the first on top.

    Dots are medians and bars quartiles: of the ratios to the best setting before it, carried on to the defaults, and in
    what was measured again, of the ratios to the defaults themselves.
    """
    again = [] if report.again is None else report.again.rows
    named = [(name(row, report), row) for row in report.rows]
    named += [(f"again: {name(row, report)}", row) for row in again]
    named = [(label, row) for label, row in named if row.to_defaults is not None]
    rows = [row for _, row in named]
    labels = [f"{label} (chosen)" if row.settings == report.chosen else label for label, row in named]
    colors = [_CHOSEN if row.settings == report.chosen else _OTHER for row in rows]
    figure, (speed, tail) = plt.subplots(
        1, 2, figsize=(9.0, 1.7 + 0.38 * len(rows)), sharey=True, layout="constrained", width_ratios=(3, 2)
    )
    for index, (row, color) in enumerate(zip(rows, colors, strict=True)):
        ratio = row.to_defaults
        assert ratio is not None
        bars = ([ratio.median - ratio.low], [ratio.high - ratio.median])
        speed.errorbar([ratio.median], [index], xerr=bars, fmt="o", color=color, capsize=3)
        tail.plot([row.p99_ms], [index], "o", color=color)
    speed.axvline(1.0, color="black", linewidth=1, linestyle=":")
    speed.set_xlabel("images/s ÷ defaults (more is better)")
    tail.set_xlabel("p99, ms (less is better)")
    tail.set_xlim(0, 1.08 * max([report.p99_limit_ms or 1.0, *(row.p99_ms or 0.0 for row in rows)]))
    tail.tick_params(left=False)
    if report.p99_limit_ms is not None:
        tail.axvline(report.p99_limit_ms, color="#b03030", linewidth=1, linestyle="--")
    speed.set_yticks(range(len(rows)), labels)
    speed.set_ylim(len(rows) - 0.5, -0.5)
    for label, color in zip(speed.get_yticklabels(), colors, strict=True):
        label.set_color("black" if color == _OTHER else color)
    for axes in (speed, tail):
        axes.grid(alpha=0.3)
    figure.suptitle(f"{title(report)}; {about_images(report.images)}", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)
