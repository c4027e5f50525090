"""The plot: agreement with float32 against the time of an image, of every setting that a build in int8 tried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from onestream.serving.engine.quantization import Quantization, Tried

_MARKERS = {"per_channel": "o", "per_tensor": "s"}
_COLORS = plt.get_cmap("tab20").colors
"""A search tries 20 settings at most: six, the ends in float32, and the parts of the layers."""


def draw(quantizations: Mapping[str, Quantization], path: Path) -> None:
    """Write a PNG (or what the suffix says) with a part for each network, under its name.

    A dot is a setting: its agreement on the pictures that were held out, or its accuracy by float32's where there are
    labels, and milliseconds of one run beside float32's.
    """
    figure, parts = plt.subplots(
        1, len(quantizations), figsize=(7.6 * len(quantizations), 4.2), layout="constrained", squeeze=False
    )
    for axes, (name, found) in zip(parts[0], quantizations.items(), strict=True):
        axes.axvline(found.speed.float32_ms, color="black", linewidth=1, linestyle=":", label="float32")
        for number, tried in enumerate(found.tried):
            at, marker = ([tried.ms], [_height(tried)]), _MARKERS[tried.settings.weights]
            color = _COLORS[number % len(_COLORS)]
            axes.plot(*at, marker, color=color, alpha=0.7, linestyle="none", label=_short(tried))
            if tried.settings == found.settings:
                axes.plot(*at, "o", markersize=14, fillstyle="none", color="black", linestyle="none", label="chosen")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("ms an image (less is better)")
        by_labels = found.agreement.accuracy is not None
        axes.set_ylabel(found.agreement.measure if by_labels else "agreement with float32, of all predictions")
        axes.set_xlim(0, 1.15 * max([found.speed.float32_ms, *(tried.ms for tried in found.tried)]))
        lowest = min(_height(tried) for tried in found.tried)
        axes.set_ylim(lowest - 0.05, 1.02)
        axes.grid(alpha=0.3)
        # Beside the plot: settings that are equally good lie on each other.
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _height(tried: Tried) -> float:
    agreement = tried.agreement
    if agreement.all_share is None or agreement.accuracy is not None:
        return agreement.share
    return agreement.all_share


def _short(tried: Tried) -> str:
    settings = tried.settings
    words = [settings.weights.removeprefix("per_"), settings.ranges, *([settings.kept] if settings.kept else [])]
    return ", ".join(words)
