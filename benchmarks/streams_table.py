"""The table of ``streams`` in docs/results.md."""

from __future__ import annotations

from typing import Any

from benchmarks.result_files import short_commit
from onestream.measure.capacity.streams import OPENCV, OURS, Summary
from onestream.measure.tables import NOT_MEASURED, markdown

FILE_NAME = "streams.json"
_HEAD = (
    *("pipeline", "onestream", "OpenCV in the client", "ours ÷ it"),
    *("CPU a frame alone: decode, network, encode, ms", "held ÷ bare decode and network", "… and encode"),
)


def table(results: dict[str, Any]) -> str:
    """Streams held of each case, beside OpenCV's way and the bounds; then the soak."""
    cases: dict[str, dict[str, Any]] = results["cases"]
    parts = []
    if cases:
        first = next(iter(cases.values()))
        dates = sorted({one["started_utc"][:10] for one in cases.values()})
        commits = sorted({short_commit(one["commit"]) for one in cases.values()})
        counts = sorted({len(one["rounds"]) for one in cases.values()})
        rounds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        about = (
            f"Video streams held in real time, {first['clip']['width']}×{first['clip']['height']} "
            f"{first['clip']['codec'].upper()} at {first['fps']} frames/s, {first['cores']} cores, client and server "
            f"on the same machine; {', '.join(dates)}, commit {', '.join(commits)}. "
            + (f"Median (quartiles) of {rounds} rounds." if counts[-1] > 1 else "One round.")
        )
        parts.append(f"{about}\n\n{markdown(_HEAD, [_row(name, one) for name, one in cases.items()])}")
    if "soak" in results:
        parts.append(f"{_soak(results['soak'])}\n")
    return "\n".join(parts)


def _row(name: str, case: dict[str, Any]) -> list[str]:
    summary = Summary.of(case)
    against, costs = summary.against_opencv, summary.costs
    parts = [f"{costs.decode_ms:.1f}", f"{costs.network_ms:.1f}"]
    encoded = NOT_MEASURED
    if costs.encode_ms:
        parts.append(f"{costs.encode_ms:.1f}")
        encoded = summary.of_bound_encoded.text(2)
    return [
        name.replace("every 1", "every frame") if case["stride"] == 1 else f"{name}{_ordinal(case['stride'])} frame",
        summary.held[OURS].text(2),
        summary.held[OPENCV].text(2),
        against.text(2) if against else NOT_MEASURED,
        " + ".join(parts),
        summary.of_bound.text(2),
        encoded,
    ]


def _ordinal(number: int) -> str:
    return {2: "nd", 3: "rd"}.get(number, "th")


def _soak(soak: dict[str, Any]) -> str:
    return (
        f"{soak['clients']} clients for {soak['minutes']:g} minutes in mode `block`, while others were killed "
        f"({soak['started_utc'][:10]}, commit {short_commit(soak['commit'])}): {soak['frames']:,} frames, "
        f"{soak['lost']} lost, {soak['out_of_order']} out of order, {soak['wrong_times']} with a wrong time; "
        f"{soak['mib_per_stream']:.0f} MiB of the server's memory for each open stream, "
        f"growth {soak['memory_growth']:+.1%}."
    )
