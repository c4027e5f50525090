"""The plot: agreement with float32 against the time of an image, of every setting that a build in int8 tried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from onestream.serving.building.quantization.price import Quantization, Tried

_CHOSEN, _OTHER, _FLOAT = "#1f6fb4", "#777777", "black"
_MARKERS = {"per_channel": "o", "per_tensor": "s"}


def draw(quantizations: Mapping[str, Quantization], path: Path) -> None:
    """Write a PNG (or what the suffix says) with a part for each network, under its name.

    A dot is a setting: its agreement on the pictures that were held out, and milliseconds of one run beside float32's.
    """
    figure, parts = plt.subplots(
        1, len(quantizations), figsize=(6.4 * len(quantizations), 4.2), layout="constrained", squeeze=False
    )
    for axes, (name, found) in zip(parts[0], quantizations.items(), strict=True):
        axes.axvline(found.speed.float32_ms, color=_FLOAT, linewidth=1, linestyle=":", label="float32")
        for tried in found.tried:
            chosen = tried.settings == found.settings
            axes.plot(
                [tried.ms],
                [_height(tried)],
                _MARKERS[tried.settings.weights],
                color=_CHOSEN if chosen else _OTHER,
                label="chosen" if chosen else None,
            )
            axes.annotate(
                _short(tried),
                (tried.ms, _height(tried)),
                xytext=(3, 5),
                textcoords="offset points",
                size=7,
                rotation=35,
            )
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("ms an image (less is better)")
        axes.set_ylabel("agreement with float32, of all predictions")
        axes.set_xlim(0, 1.15 * max([found.speed.float32_ms, *(tried.ms for tried in found.tried)]))
        lowest = min(_height(tried) for tried in found.tried)
        # Room for the names, which rise.
        axes.set_ylim(lowest - 0.05, 1 + 0.25 * (1.05 - lowest))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _height(tried: Tried) -> float:
    agreement = tried.agreement
    return agreement.share if agreement.all_share is None else agreement.all_share


def _short(tried: Tried) -> str:
    settings = tried.settings
    words = [settings.weights.removeprefix("per_"), settings.ranges, *([settings.kept] if settings.kept else [])]
    return ", ".join(words)
