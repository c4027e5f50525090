"""A report as a table for the terminal."""

from __future__ import annotations

from rich.table import Column, Table
from rich.text import Text

from onestream.measure.tables import NOT_MEASURED, terminal
from onestream.measure.tune.knobs import text
from onestream.measure.tune.report import ImagesUsed, Report, Row, changed


def title(report: Report) -> str:
    """What was measured, in one line."""
    cores = f"{report.cores} core" + ("" if report.cores == 1 else "s")
    where = f"a GPU and {cores}" if report.device == "gpu" else cores
    return f"{report.model} on {where}, concurrency {report.concurrency}"


def about_images(images: ImagesUsed) -> str:
    """How many images were sent, and their sizes, in one line."""
    number = f"{images.used}" if images.used == images.found else f"{images.used} of {images.found}"
    kilobytes = "–".join(f"{size / 1000:.0f}" for size in dict.fromkeys((images.smallest_bytes, images.largest_bytes)))
    pixels = " to ".join(
        f"{width}×{height}" for width, height in dict.fromkeys((images.smallest_pixels, images.largest_pixels))
    )
    return f"{number} images, {pixels}, {kilobytes} KB (median {images.median_bytes / 1000:.0f})"


def tabulate(report: Report) -> Table:
    """A row for the start and for every setting that was tried, in the order of the trials; then the second look."""
    table = terminal(
        Column("serving", no_wrap=True),
        Column("images/s", justify="right", no_wrap=True),
        Column("p50, p99 ms", justify="right", no_wrap=True),
        Column("÷ defaults", justify="right", no_wrap=True),
        Column("", no_wrap=True, min_width=6),
        title=title(report),
        padding=(0, 1, 0, 0),
    )
    first, *tried = report.rows
    table.add_row(*_cells(first, _label(text(first.settings), first, report)), "now")
    for row in tried:
        table.add_row(*_cells(row, _label(name(row, report), row, report)), _verdict(row, report))
    if report.again is not None:
        table.add_section()
        table.add_row(Text("measured again", style="bold"))
        for row in report.again.rows:
            chosen = row.settings == report.chosen
            table.add_row(
                *_cells(row, _label(name(row, report), row, report)), Text("chosen", style="green") if chosen else ""
            )
    return table


def name(row: Row, report: Report) -> str:
    """A setting by what differs from the file."""
    return text(changed(row.settings, report.start)) or "now"


def _label(settings: str, row: Row, report: Report) -> str:
    """Settings, one a line; under less precision the share of each network's answers that are float32's."""
    lines = settings.split(", ")
    if row.settings.get("precision", "float32") != "float32":
        lines += [f" {name} agrees {agreement.share:.3f}" for name, agreement in report.agreements.items()]
    return "\n".join(lines)


def _cells(row: Row, label: str) -> tuple[str | Text, ...]:
    if row.images_per_s is None:
        return label, *[NOT_MEASURED] * 3
    ratio = row.to_defaults
    return (
        label,
        row.images_per_s.text(0),
        f"{row.p50_ms:.0f}, {row.p99_ms:.0f}",
        NOT_MEASURED if ratio is None else f"{ratio.median:.2f}" if ratio.low == ratio.high else ratio.text(2),
    )


def _verdict(row: Row, report: Report) -> Text:
    if row.images_per_s is None:
        return Text("failed", style="red")
    if row.settings == report.chosen:
        return Text("chosen", style="green")
    return Text("better", style="green") if row.better else Text("no")
