"""The table of bulk on Ray, from a result file."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import scale_out_table
from benchmarks.result_files import Raw, read


def test_wins_losses_and_memory_are_shown(tmp_path: Path) -> None:
    results = {
        "started_utc": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "machine": {"cores": 2},
        "versions": {"ray": "2.60.0"},
        "size": "1920x1080",
        "images": 3000,
        "rounds": [
            {"in process": 100.0, "bulk --ray": 90.0, "bulk": 45.0},
            {"in process": 120.0, "bulk --ray": 60.0, "bulk": 60.0},
        ],
        "memory_bytes": {"10000": 200_000_000, "1000000": 210_000_000},
    }
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / scale_out_table.FILE_NAME).write_text(json.dumps(results))
    (found,) = read(tmp_path, scale_out_table.FILE_NAME, Raw)
    table = scale_out_table.table(found)
    assert "in one process a core, without any engine | 110.0 (105.0–115.0) | 0.70 (0.60–0.80) |" in table
    assert "| `onestream bulk --ray` | 75.0 (67.5–82.5) |  |" in table
    assert "| 52.5 (48.8–56.2) | 1.50 (1.25–1.75) |" in table
    assert "3000 photos of 1920×1080, 2 cores" in table
    assert "200 MB with 10,000 and 210 MB with 1,000,000 names" in table
