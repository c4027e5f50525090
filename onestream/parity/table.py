"""A report as a table for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from onestream.parity.report import Report, SubjectReport
from preprocess.tolerances import Stage, tolerance
from serving.certificate import STAGES
from serving.figures import Figures

_MOST_LISTED = 10
"""Photos named below one subject."""


def tabulate(report: Report) -> Table:
    """One block for each subject: a row for each stage that it shows, the network's outputs and the predictions."""
    table = Table(
        Column("against the reference", no_wrap=True),
        Column("max", justify="right", no_wrap=True),
        Column("mean", justify="right", no_wrap=True),
        Column("99.9 %", justify="right", no_wrap=True),
        Column("above 1", justify="right", no_wrap=True),
        Column("verdict", overflow="fold"),
        title=f"{report.pipeline}, definition {report.definition_digest[:12]}, {report.compared} photos",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for subject in report.subjects:
        table.add_section()
        table.add_row(Text(subject.name, style="bold"), "", "", "", "", "" if subject.judged else _dim("not judged"))
        for stage in STAGES:
            if stage in subject.stages or stage in subject.other_shape:
                table.add_row(*_stage_row(subject, stage))
        if subject.logits is not None:
            figures = subject.logits
            columns = (f"{value:.3f}" for value in (figures.max, figures.mean, figures.percentile_99_9))
            table.add_row("  logits", *columns, "–", "")
        if subject.predictions:
            flips = len(subject.flips)
            forms = f" ({', '.join(subject.forms)})" if subject.forms else ""
            told = Text(f"{flips} of {subject.predictions} flipped{forms}", style="yellow" if flips else "")
            table.add_row("  top-1", "", "", "", "", told)
        told_of = [
            (flip.photo, Text(f"{flip.form}: " if flip.form else "").append(f"{flip.expected} → {flip.got}"))
            for flip in subject.flips
        ]
        style = "red" if subject.judged else "yellow"
        told_of += [(photo, Text(reason, style=style)) for photo, reason in subject.refused.items()]
        for photo, what in told_of[:_MOST_LISTED]:
            table.add_row(Text(f"    {photo}"), "", "", "", "", what)
        if len(told_of) > _MOST_LISTED:
            table.add_row(f"    and {len(told_of) - _MOST_LISTED} more; --json lists all", "", "", "", "", "")
    return table


def _stage_row(subject: SubjectReport, stage: Stage) -> tuple[str | Text, ...]:
    figures, other = subject.stages.get(stage), subject.other_shape.get(stage, 0)
    verdict = _verdict(figures, stage) if subject.judged and figures is not None else Text()
    if other:
        style = "red" if subject.judged else "yellow"
        verdict = Text(f"another size: {other} of {subject.photos} photos", style=style)
    if figures is None:
        return f"  {stage}", "–", "–", "–", "–", verdict
    return (
        f"  {stage}",
        f"{figures.max:.3g}",
        f"{figures.mean:.3f}",
        f"{figures.percentile_99_9:.3g}",
        f"{figures.share_above_one:.2%}",
        verdict,
    )


def _verdict(figures: Figures, stage: Stage) -> Text:
    if figures.within:
        return Text("within", style="green")
    allowed = tolerance("dali", stage)
    return Text(
        f"outside: allowed for 8-bit files are {allowed.max_level:g} at most, {allowed.share_different:.0%} of values "
        f"different, {allowed.share_above_one:.0%} above 1",
        style="red",
    )


def _dim(text: str) -> Text:
    return Text(text, style="dim")
