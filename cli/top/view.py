"""Prints ``onestream top``: a table for the terminal, or an object for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from onestream.cli.top.report import Gpu, Model, Report, Step

_NOTHING = "–"
_WIDTH = 80
_MOST_CLASSES = 5
"""Named of those that a detector found."""
_COLUMNS = (
    "infer/s",
    "latency\nms",
    "queue\nms",
    "batch",
    "waiting",
    "failed\n/s",
    "bad\n/s",
    "ms per\nbatch",
    "share",
)


def table(report: Report) -> RenderableType:
    """The whole report. It fits 80 columns; long names are folded."""
    lines: list[RenderableType] = [_machine(report)]
    if report.models:
        lines += [Text(), _Uncrowded(_models(report))]
    else:
        lines.append(Text("no models: the server loads, or these are not Triton's metrics", style="yellow"))
    notes = [*_videos(report), *_objects(report), *_reasons(report), *_hint(report)]
    if notes:
        lines += [Text(), *notes]
    return Group(*lines)


def as_dict(report: Report) -> dict[str, Any]:
    """The report for JSON. Counts are of the interval, in which ``seconds`` passed; None is what cannot be said."""
    models = []
    for model in report.models:
        fields = asdict(model) | {"inferences_per_s": model.inferences / report.seconds}
        for step, named in zip(model.steps, fields["steps"], strict=True):
            named["ms_per_batch"] = step.ms_per_batch
        models.append(fields)
    bottleneck = report.bottleneck
    return asdict(report) | {"models": models, "bottleneck": bottleneck.name if bottleneck else None}


def _machine(report: Report) -> Text:
    """One line of the whole machine, and one for each GPU."""
    cpu = f"CPU {_percent(report.cpu_utilization)}   memory {_memory(report)}   over {report.seconds:.1f} s"
    return Text("\n".join([cpu, *map(_gpu, report.gpus)]))


def _gpu(gpu: Gpu) -> str:
    power = "" if gpu.power_w is None else f"   {gpu.power_w:.0f} W"
    return f"{gpu.uuid[:12]} {_percent(gpu.utilization)}   memory {_memory(gpu)}{power}"


def _memory(of: Report | Gpu) -> str:
    if of.memory_used_bytes is None or of.memory_total_bytes is None:
        return _NOTHING
    return f"{of.memory_used_bytes / 1e9:.1f} of {of.memory_total_bytes / 1e9:.1f} GB"


@dataclass(frozen=True)
class _Uncrowded:
    """A table in a window that may be too narrow: its last columns are cut off then, rather than all be squeezed."""

    rows: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.rows, options.update_width(max(options.max_width, _WIDTH)))


def _models(report: Report) -> Table:
    # Without a box and with one space between columns, and only names are folded: all of it in 80 columns.
    rows = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    rows.add_column("model", overflow="fold", min_width=14, vertical="bottom")
    for heading in _COLUMNS:
        rows.add_column(heading, justify="right", no_wrap=True, min_width=5)
    for pipeline, parts in report.pipelines:
        _add(rows, Text(pipeline.name, style="bold"), pipeline, report.seconds, step_indent="  ")
        for part in parts:
            name = Text("  " + part.name.removeprefix(f"{pipeline.name}_"))
            _add(rows, name, part, report.seconds, step_indent="    ")
    return rows


def _add(rows: Table, name: Text, model: Model, seconds: float, *, step_indent: str) -> None:
    one_step = model.steps[0] if len(model.steps) == 1 else None
    rows.add_row(
        name,
        f"{model.inferences / seconds:.1f}",
        _number(model.latency_ms, 1),
        _number(model.queue_ms, 1),
        _number(model.batch_size, 2),
        _NOTHING if model.pending is None else str(model.pending),
        _alarming(sum(model.failures.values()) / seconds, "red"),
        _alarming(sum(model.bad_images.values()) / seconds, "yellow"),
        *_step_cells(one_step),
    )
    if one_step is None:
        for step in model.steps:
            rows.add_row(Text(step_indent + step.name), *[""] * 7, *_step_cells(step))


def _step_cells(step: Step | None) -> tuple[str, str]:
    if step is None:
        return "", ""
    return _number(step.ms_per_batch, 1), _percent(step.share if step.batches else None)


def _videos(report: Report) -> list[Text]:
    return [
        Text(
            f"{model.name}: streams open {model.video.streams}, "
            f"frames decoded {model.video.decoded / report.seconds:.1f}/s, "
            f"dropped {model.video.dropped / report.seconds:.1f}/s"
        )
        for model in report.models
        if model.video is not None
    ]


def _objects(report: Report) -> list[Text]:
    """What detectors found, and dropped, each where it was counted."""
    lines = []
    for model in report.models:
        if model.parts:
            continue
        if model.objects:
            often = dict(sorted(model.objects.items(), key=lambda one: -one[1])[:_MOST_CLASSES])
            more = len(model.objects) - len(often)
            rest = f", {more} more class{'es' if more > 1 else ''}" if more else ""
            lines.append(Text(f"found, {model.name}: {_rates(often, report.seconds)}{rest}"))
        if model.dropped_candidates:
            rate = f"{model.dropped_candidates / report.seconds:.1f}/s"
            lines.append(Text(f"not finite, {model.name}: {rate} of the network's values", style="yellow"))
    return lines


def _reasons(report: Report) -> list[Text]:
    """Failures and bad images by reason, each where it was counted."""
    lines = []
    for model in report.models:
        if model.failures:
            lines.append(Text(f"failed, {model.name}: {_rates(model.failures, report.seconds)}", style="red"))
        if model.bad_images and not model.parts:
            lines.append(Text(f"bad, {model.name}: {_rates(model.bad_images, report.seconds)}", style="yellow"))
    return lines


def _rates(counts: Mapping[str, float], seconds: float) -> str:
    return ", ".join(f"{reason} {count / seconds:.1f}/s" for reason, count in counts.items())


def _hint(report: Report) -> list[Text]:
    slow = report.bottleneck
    if slow is None:
        return []
    queue_ms, latency_ms = _number(slow.queue_ms, 1), _number(slow.latency_ms, 1)
    return [Text(f"Requests wait longest before {slow.name}: {queue_ms} of {latency_ms} ms.")]


def _alarming(rate: float, style: str) -> Text:
    return Text(f"{rate:.1f}", style=style if rate else "")


def _number(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{100 * value:.0f}%"
