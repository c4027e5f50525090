"""The table of the video benchmark, from a result file."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import video_table
from benchmarks.result_files import Raw, read


def measured(*rates: float) -> list[dict[str, float]]:
    return [{"clips_per_s": rate, "cpu_s_per_clip": 1.0, "others": 0.02} for rate in rates]


def test_wins_and_losses_are_shown(tmp_path: Path) -> None:
    results = {
        "started_utc": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "clip": {"frames": 60, "stride": 5, "size": 224},
        "workers": 2,
        "rounds": {"ours": measured(1.0, 1.2), "decord2": measured(2.0, 1.0)},
    }
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / video_table.FILE_NAME).write_text(json.dumps(results))
    (found,) = read(tmp_path, video_table.FILE_NAME, Raw)
    table = video_table.table(found)
    assert "| ours | 1.10 (1.05–1.15) |  |" in table
    assert "| decord2 | 1.50 (1.25–1.75) | 0.85 (0.68–1.02) |" in table
    assert "commit 0123456789ab." in table
    assert "up to 2%" in table
