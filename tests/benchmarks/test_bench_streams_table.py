"""The table of the stream benchmark says what the raw numbers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import streams_table
from benchmarks.result_files import Raw, read


def case(held: list[tuple[float, float]], *, encode_ms: float = 0.0, stride: int = 1) -> dict[str, Any]:
    return {
        "started_utc": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "fps": 30,
        "cores": 2,
        "stride": stride,
        "clip": {"width": 1920, "height": 1080, "codec": "h264"},
        "rounds": [
            {
                "held": {"onestream": ours, "OpenCV": theirs},
                # Before and after the round, on a machine that became slower: 6 and 4 ms.
                "bare_ms": [
                    {"decode_ms": 5.0, "network_ms": 3.0, "encode_ms": encode_ms},
                    {"decode_ms": 7.0, "network_ms": 5.0, "encode_ms": encode_ms},
                ],
                "tried": [],
            }
            for ours, theirs in held
        ],
    }


def test_losses_and_wins_stand_beside_their_bounds(tmp_path: Path) -> None:
    results = {
        "cases": {
            "classify, every 5": case([(4.0, 5.0), (4.0, 5.0), (6.0, 5.0)], stride=5),
            "matte, every 1": case([(2.0, 1.0)], encode_ms=10.0),
        },
        "soak": {
            "clients": 8, "minutes": 30, "frames": 87245, "lost": 0, "out_of_order": 0, "wrong_times": 0,
            "mib_per_stream": 29.4, "memory_growth": 0.012, "commit": "0123456789ab",
            "started_utc": "2026-01-02T03:04:05",
        },
    }  # fmt: skip
    folder = tmp_path / "machine"
    folder.mkdir()
    (folder / streams_table.FILE_NAME).write_text(json.dumps(results))
    (found,) = read(tmp_path, streams_table.FILE_NAME, Raw)
    text = streams_table.table(found)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    by_name = {row[0]: row[1:] for row in rows[2:]}
    # 2 cores / 30 frames of 6 + 4 / 5 ms = 9.80 streams.
    assert by_name["classify, every 5th frame"] == [
        "4.00 (4.00–5.00)", "5.00 (5.00–5.00)", "0.80 (0.80–1.00)", "6.0 + 4.0", "0.41 (0.41–0.51)", "–",
    ]  # fmt: skip
    # 2 / (30 × 10 ms) = 6.67, and 2 / (30 × 20 ms) = 3.33.
    assert by_name["matte, every frame"] == ["2.00", "1.00", "2.00", "6.0 + 4.0 + 10.0", "0.30", "0.60"]
    assert "87,245 frames, 0 lost, 0 out of order" in text
    assert "29 MiB of the server's memory for each open stream, growth +1.2%" in text
