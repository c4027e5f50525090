"""A report as a table and lists for the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from onestream.measure.parity.report import (
    BoxFigures,
    PictureFigures,
    RegionFigures,
    Report,
    SubjectReport,
    TextFigures,
    stages_of,
)
from onestream.measure.tables import terminal
from onestream.preprocess.definition import PreprocessingStage
from onestream.serving.built.certificate import Figures

_MOST_ROWS = 20
_MOST_LISTED = 10
"""Photos named for one subject under one heading."""


def tabulate(report: Report) -> Table:
    """One block for each subject: a row for each stage that it shows, the network's outputs and its answers."""
    definition = f"definition {report.definition_digest[:12]}" if report.definition_digest else "from picture to answer"
    table = terminal(
        Column("against the reference", overflow="fold", max_width=36, min_width=22),
        Column("max", justify="right", no_wrap=True),
        Column("mean", justify="right", no_wrap=True),
        Column("99.9 %", justify="right", no_wrap=True),
        Column("above 1", justify="right", no_wrap=True),
        Column("verdict", overflow="fold", min_width=16),
        title=f"{report.pipeline}, {definition}, {report.compared} {report.kind}s",
    )
    for subject in report.subjects:
        table.add_section()
        remark = ", ".join(subject.forms) if subject.judged else "not judged"
        table.add_row(Text(subject.name, style="bold"), "", "", "", "", Text(remark, style="dim"))
        for stage in stages_of(report.kind):
            if stage in subject.stages or stage in subject.other_shape:
                table.add_row(*_stage_row(subject, stage, report.kind))
        if subject.logits is not None:
            figures = subject.logits
            columns = (f"{value:.3f}" for value in (figures.max, figures.mean, figures.percentile_99_9))
            table.add_row("  logits", *columns, "–", "")
        rows = [
            *_picture_rows(subject),
            *_box_rows(subject.boxes),
            *_region_rows(subject.regions),
            *_text_rows(subject.texts),
        ]
        for row in rows:
            table.add_row(*row)
        if not rows and subject.predictions:
            flips = len(subject.flips)
            told = Text(f"{flips} of {subject.predictions} flipped", style="yellow" if flips else "")
            table.add_row("  top-1", "", "", "", "", told)
    return table


def pictures(report: Report) -> Table | None:
    """Of patches a row for each picture, those first that differ; None of what has no patches."""
    subjects = [subject for subject in report.subjects if subject.pictures]
    if not subjects:
        return None
    table = terminal(
        Column("picture", overflow="fold", min_width=16),
        Column("grid", no_wrap=True),
        Column("tokens", justify="right", no_wrap=True),
        *(Column(subject.name, overflow="fold", min_width=12) for subject in subjects),
        title="difference of each picture: levels, normalized values",
    )
    by_photo: dict[str, dict[str, PictureFigures]] = {}
    for subject in subjects:
        for one in subject.pictures:
            by_photo.setdefault(one.photo, {})[subject.name] = one
    ordered = sorted(by_photo.items(), key=lambda row: all(one.equal for one in row[1].values()))
    for photo, seen in ordered[:_MOST_ROWS]:
        right = next(iter(seen.values()))
        cells = [_picture_cell(seen.get(subject.name)) for subject in subjects]
        grid = "x".join(map(str, right.expected_grid))
        table.add_row(Path(photo).name, grid, str(right.expected_tokens), *cells)
    if len(ordered) > _MOST_ROWS:
        table.caption = f"{len(ordered) - _MOST_ROWS} more; --json lists all"
    return table


def _picture_cell(one: PictureFigures | None) -> Text:
    if one is None:
        return Text("refused", style="yellow")
    if one.equal:
        return Text("equal", style="green")
    if one.levels is None or one.values is None:
        return Text(f"grid {'x'.join(map(str, one.grid))}", style="yellow")
    tokens = f", {one.tokens} tokens" if one.tokens != one.expected_tokens else ""
    return Text(f"{one.levels:g}, {one.values:.3g}{tokens}", style="yellow")


def _picture_rows(subject: SubjectReport) -> list[_Row]:
    equal = sum(one.equal for one in subject.pictures)
    told = f"{equal} of {len(subject.pictures)} in every bit"
    return [_row("pictures equal", told, changed=equal < len(subject.pictures))] if subject.pictures else []


def lists(report: Report) -> dict[str, list[str]]:
    """What a table has no room for: lines by heading."""
    flips, refused = [], []
    detects = any(subject.boxes is not None for subject in report.subjects)
    finds = any(subject.regions is not None for subject in report.subjects)
    changed = "Lost, added and changed regions" if finds else "Flipped predictions"
    for subject in report.subjects:
        flips += _cut(
            [
                f"{flip.form or subject.name}: {Path(flip.photo).name}: {flip.expected} → {flip.got}"
                for flip in subject.flips
            ],
            subject,
        )
        refused += _cut([f"{subject.name}: {photo}: {reason}" for photo, reason in subject.refused.items()], subject)
    return {
        "Lost and added objects" if detects else changed: flips,
        "Refused, though the reference takes them": refused,
        "How the clips become RGB": [f"{name}: {colors}" for name, colors in report.colors.items()],
        f"Bad {'image' if report.kind == 'photo' else report.kind}s": [
            f"{name}: {reason}" for name, reason in report.bad_images.items()
        ],
        "Not compared": [f"{name}: {reason}" for name, reason in report.not_compared.items()],
    }


def _cut(lines: list[str], subject: SubjectReport) -> list[str]:
    more = len(lines) - _MOST_LISTED
    return lines if more <= 0 else [*lines[:_MOST_LISTED], f"{subject.name}: {more} more; --json lists all"]


def _stage_row(subject: SubjectReport, stage: PreprocessingStage, kind: str) -> _Row:
    figures, other = subject.stages.get(stage), subject.other_shape.get(stage, 0)
    verdict = _verdict(subject, figures, stage) if stage in subject.allowed and figures is not None else Text()
    if other:
        style = "red" if subject.judged else "yellow"
        verdict = Text(f"another size: {other} of {subject.photos} {kind}s", style=style)
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


_Row = tuple[str | Text, ...]


def _row(name: str, told: str, *, changed: bool) -> _Row:
    return f"  {name}", "", "", "", "", Text(told, style="yellow" if changed else "")


def _region_rows(regions: RegionFigures | None) -> list[_Row]:
    if regions is None:
        return []
    overlap = "–" if regions.least_iou is None else f"{regions.mean_iou:.3f}, at least {regions.least_iou:.3f}"
    rows = [
        _row("regions lost", f"{regions.lost} of {regions.expected}", changed=bool(regions.lost)),
        _row("regions added", str(regions.added), changed=bool(regions.added)),
        _row("overlap (IoU)", overlap, changed=False),
    ]
    if regions.otherwise is not None:
        same = regions.expected - regions.lost
        rows.append(_row("other answer", f"{regions.otherwise} of {same}", changed=bool(regions.otherwise)))
    return rows


def _text_rows(texts: TextFigures | None) -> list[_Row]:
    if texts is None:
        return []
    return [
        _row("texts equal", f"{texts.equal} of {texts.lines}", changed=texts.equal < texts.lines),
        _row("edit distance", f"{texts.edits} of {texts.characters} characters", changed=bool(texts.edits)),
    ]


def _box_rows(boxes: BoxFigures | None) -> list[_Row]:
    if boxes is None:
        return []
    farthest = f", at most {boxes.farthest_px:.1f} px" if boxes.moved else ""
    ap = "–" if boxes.agreement_ap is None else f"{boxes.agreement_ap:.3f}"
    return [
        _row("boxes lost", f"{boxes.lost} of {boxes.expected}", changed=bool(boxes.lost)),
        _row("boxes added", str(boxes.added), changed=bool(boxes.added)),
        _row("boxes moved", f"{boxes.moved}{farthest}", changed=bool(boxes.moved)),
        _row("agreement AP", ap, changed=False),
    ]


def _verdict(subject: SubjectReport, figures: Figures, stage: PreprocessingStage) -> Text:
    if figures.within:
        return Text("within", style="green")
    return Text(f"outside: allowed {subject.allowed[stage]}", style="red" if subject.judged else "yellow")
