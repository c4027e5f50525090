"""The report as a picture: what the network sees, and where each subject departs from it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.measure.parity.report import Report
from onestream.measure.parity.subject import Item, Pixels, Refused, Subject
from onestream.preprocess import BackendMissing
from onestream.preprocess.backends.reference import picture
from onestream.preprocess.operations import Color
from onestream.wire.install import install_command

MOST_PHOTOS = 4
BRIGHTEST_LEVEL = 32.0
"""The difference, in levels, at which the colours end."""
_COLORS = "inferno"
_TILE_INCHES = 2.1


def draw(
    path: Path,
    report: Report,
    reference: Subject[Item],
    subjects: Sequence[Subject[Item]],
    items: Sequence[Item],
    *,
    color: Color,
) -> None:
    """Write a PNG of the photos or frames that differ most, at most ``MOST_PHOTOS``, after the definition's crop.

    ``color`` is the definition's; its pictures are shown as they look, whatever the order of the network's channels.
    A difference is the largest over the channels, in levels; the colours follow its square root, so that one level can
    be seen, and end at 32. It needs matplotlib (``check_installed``). Raises ``OSError``.
    """
    pyplot, colors = _matplotlib()
    flipped = {flip.photo for judged in (True, False) for flip in report.flips(judged=judged)}
    rows = nlargest(
        MOST_PHOTOS,
        ((item, *_differences(item, reference, subjects)) for item in items if item.name not in report.bad_images),
        key=lambda row: (row[0].name in flipped, sum(float(d.mean()) for d in row[2] if d is not None)),
    )
    count = 1 + len(subjects)
    figure, grid = pyplot.subplots(
        len(rows),
        count,
        figsize=(_TILE_INCHES * count + 0.9, (_TILE_INCHES + 0.15) * len(rows) + 0.8),
        squeeze=False,
        layout="constrained",
    )
    norm, image = _norm(colors), None
    for axes, (item, pixels, differences) in zip(grid, rows, strict=True):
        axes[0].imshow(picture(pixels, color), cmap="gray", vmin=0, vmax=255)
        axes[0].set_ylabel(Path(item.name).name, fontsize=9)
        for column, subject, difference in zip(axes[1:], subjects, differences, strict=True):
            if difference is None:
                column.text(0.5, 0.5, "another size\nor refused", ha="center", va="center", transform=column.transAxes)
            else:
                image = column.imshow(difference.max(axis=2), cmap=_COLORS, norm=norm)
            flip = _flip(report, subject.name, item.name)
            column.set_xlabel(_caption(difference, flip), fontsize=8, color="firebrick" if flip else "black")
    for index, name in enumerate(["what the network sees", *(subject.name for subject in subjects)]):
        grid[0][index].set_title(name, fontsize=10)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    if image is not None:
        bar = figure.colorbar(image, ax=grid, extend="max", shrink=0.8, aspect=30, ticks=[0, 1, 4, 8, 16, 32])
        bar.set_label("difference from the reference, levels of 255", fontsize=9)
    figure.suptitle(f"{report.pipeline}: pixels after the crop, against the reference", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def paint(difference: npt.NDArray[Any]) -> Pixels:
    """Differences in levels, of any shape, in the colours of ``draw``: RGB, with the channels as a last dimension.

    It needs matplotlib (``check_installed``).
    """
    pyplot, colors = _matplotlib()
    rgb: Pixels = pyplot.get_cmap(_COLORS)(_norm(colors)(difference), bytes=True)[..., :3]
    return rgb


def _norm(colors: Any) -> Any:
    return colors.PowerNorm(0.5, vmin=0, vmax=BRIGHTEST_LEVEL)


def _differences(
    item: Item, reference: Subject[Item], subjects: Sequence[Subject[Item]]
) -> tuple[Pixels, list[npt.NDArray[np.int16] | None]]:
    pixels: Pixels = reference.observe(item).stages["crop"]
    found: list[npt.NDArray[np.int16] | None] = []
    for subject in subjects:
        try:
            seen = subject.observe(item).network_pixels
        except Refused:
            seen = None
        if seen is None or seen.shape != pixels.shape:
            found.append(None)
        else:
            found.append(np.abs(seen.astype(np.int16) - pixels.astype(np.int16)))
    return pixels, found


def _flip(report: Report, subject: str, photo: str) -> str:
    """What became of the best class or of the first object that is another; empty where all are the same."""
    flips = next(one.flips for one in report.subjects if one.name == subject)
    return next((f"{flip.expected} → {flip.got}" for flip in flips if flip.photo == photo), "")


def _caption(difference: npt.NDArray[np.int16] | None, flip: str) -> str:
    figures = "" if difference is None else f"max {difference.max()}, mean {difference.mean():.2f}"
    return f"{figures}\n{flip}" if flip else figures


def check_installed() -> None:
    """Raise ``BackendMissing`` where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BackendMissing(f"a heat map needs matplotlib: {install_command('demo')}") from error


def _matplotlib() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colors, pyplot

    return pyplot, colors
