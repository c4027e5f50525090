"""The table of ``video_clips`` in docs/results.md."""

from __future__ import annotations

from typing import Any

from benchmarks.result_files import short_commit
from onestream.measure.spread import Spread, ratio
from onestream.measure.tables import markdown

FILE_NAME = "video-clips.json"


def table(results: dict[str, Any]) -> str:
    """Clips per second of each competitor, and ours divided by theirs."""
    clip, measured = results["clip"], results["rounds"]
    rates = {name: {n: one["clips_per_s"] for n, one in enumerate(rounds)} for name, rounds in measured.items()}
    others = max(one["others"] for rounds in measured.values() for one in rounds)
    about = (
        f"Video loader, 1080p H.264, clips of {clip['frames']} frames, every {clip['stride']}th, resized to "
        f"{clip['size']}×{clip['size']}, {results['workers']} cores; {results['started_utc'][:10]}, commit "
        f"{short_commit(results['commit'])}. Median (quartiles) of {len(rates['ours'])} rounds; "
        f"other programs used up to {others:.0%} of the machine."
    )
    rows = []
    for name, of_loader in rates.items():
        against = ratio(rates["ours"], of_loader) if name != "ours" else None
        rows.append([name, Spread.of(list(of_loader.values())).text(2), against.text(2) if against else ""])
    return f"{about}\n\n{markdown(['loader', 'clips/s', 'ours ÷ it'], rows)}"
