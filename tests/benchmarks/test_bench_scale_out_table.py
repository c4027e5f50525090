"""The table of bulk on Ray, from a result file."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import scale_out_table
from benchmarks.result_files import Raw, read
from benchmarks.scale_out_kills import KINDS, lost_and_doubled

RESULTS: Raw = {
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


def test_wins_losses_and_memory_are_shown(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / scale_out_table.FILE_NAME).write_text(json.dumps(RESULTS))
    (found,) = read(tmp_path, scale_out_table.FILE_NAME, Raw)
    table = scale_out_table.table(found)
    assert "in one process a core, without any engine | 110.0 (105.0–115.0) | 0.70 (0.60–0.80) |" in table
    assert "| `onestream bulk --ray` | 75.0 (67.5–82.5) |  |" in table
    assert "| 52.5 (48.8–56.2) | 1.50 (1.25–1.75) |" in table
    assert "3000 photos of 1920×1080, 2 cores" in table
    assert "Killed" not in table
    assert "200 MB with 10,000 and 210 MB with 1,000,000 names" in table


def test_rows_lost_and_doubled_are_counted_and_shown(tmp_path: Path) -> None:
    for name, paths in (("part-0.jsonl", "ab"), ("part-1.jsonl", "bbc"), ("_run.json", "z")):
        (tmp_path / name).write_text("".join(f'{{"path": "{path}"}}\n' for path in paths))
    assert lost_and_doubled(tmp_path, "abcde") == (2, 2)
    assert lost_and_doubled(tmp_path, "abc") == (0, 2)
    counts = {"runs": 20, "lost": 0, "doubled": 3}
    kills = {
        "started_utc": "2026-01-03T03:04:05+00:00",
        "commit": "fedcba9876543210",
        **{kind: counts | {"lost": number} for number, kind in enumerate(KINDS)},
    }
    table = scale_out_table.table(RESULTS | {scale_out_table.KILLS: kills})
    assert "2026-01-03, commit fedcba987654" in table
    assert "| a worker | 20 | 0 | 3 |" in table
    assert "| a node | 20 | 1 | 3 |" in table
    assert "| the command, which is then given again | 20 | 2 | 3 |" in table
