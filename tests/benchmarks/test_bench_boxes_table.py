"""The table of boxes, from a result file."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import boxes_table
from benchmarks.result_files import Raw, read
from onestream.measure.parity.report import BoxFigures, Report, SubjectReport


def subject(name: str, forms: list[str], **figures: object) -> SubjectReport:
    boxes = BoxFigures.model_validate(
        {"expected": 40, "lost": 0, "added": 0, "moved": 0, "equal": 40, "farthest_px": 0.5, "agreement_ap": 1.0}
        | figures
    )
    return SubjectReport(
        name=name, judged=True, photos=2, stages={}, other_shape={}, refused={}, logits=None, predictions=40,
        forms=forms, flips=[], boxes=boxes,
    )  # fmt: skip


def test_shares_and_what_is_lost_are_shown(tmp_path: Path) -> None:
    report = Report(
        pipeline="detect", definition_digest="0" * 64, versions={}, photos=["a.jpg", "b.jpg"], bad_images={},
        problems=[], not_compared={},
        subjects=[
            subject("server", ["detect", "detect_fused"]),
            subject("OpenCV", [], lost=3, added=1, moved=2, equal=35, farthest_px=2.66, agreement_ap=None),
        ],
    )  # fmt: skip
    results = {
        "started_utc": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "reports": {"detect": report.model_dump(mode="json")},
    }
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / boxes_table.FILE_NAME).write_text(json.dumps(results))
    (kept,) = read(tmp_path, boxes_table.FILE_NAME, Raw)
    table = boxes_table.table(kept)
    assert "| detect | server: detect and detect_fused | 40 of 40 (100.0%) | 0 | 0 | 0 | 1.000 |" in table
    assert "| detect | OpenCV | 35 of 40 (87.5%) | 3 | 1 | 2, at most 2.7 | – |" in table
    assert "on 2 photos" in table
    assert "commit 0123456789ab." in table
