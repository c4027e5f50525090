"""The table of ``boxes`` in docs/results.md."""

from __future__ import annotations

from typing import Any

from benchmarks.result_files import short_commit
from onestream.measure.parity.report import BoxFigures, Report, SubjectReport
from onestream.measure.tables import markdown

FILE_NAME = "boxes.json"
_HEAD = ("pipeline", "compared with the reference", "equal boxes", "lost", "added", "moved by more than 1 px", "AP")


def table(results: dict[str, Any]) -> str:
    """The boxes of each pipeline and subject against the reference's."""
    reports = [Report.model_validate(one) for one in results["reports"].values()]
    counts = sorted({report.compared for report in reports})
    about = (
        f"Boxes against those of the reference pipeline, on {' to '.join(map(str, counts))} photos, 500×375 and "
        f"1920×1080; {results['started_utc'][:10]}, commit {short_commit(results['commit'])}. Equal: the same "
        "class, and an IoU of at least 0.99. AP: COCO's, with the reference's boxes as the truth."
    )
    rows = [_row(report, subject, subject.boxes) for report in reports for subject in report.subjects if subject.boxes]
    return f"{about}\n\n{markdown(_HEAD, rows)}"


def _row(report: Report, subject: SubjectReport, boxes: BoxFigures) -> list[str]:
    share = f" ({boxes.equal / boxes.expected:.1%})" if boxes.expected else ""
    return [
        report.pipeline,
        f"{subject.name}: {' and '.join(subject.forms)}" if subject.forms else subject.name,
        f"{boxes.equal} of {boxes.expected}{share}",
        str(boxes.lost),
        str(boxes.added),
        f"{boxes.moved}, at most {boxes.farthest_px:.1f}" if boxes.moved else "0",
        "–" if boxes.agreement_ap is None else f"{boxes.agreement_ap:.3f}",
    ]
