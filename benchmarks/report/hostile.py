"""The table of docs/security.md: what the parts of a hostile run found, each with a date and commit of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks.report.pages import markdown
from benchmarks.result_files import Raw, short_commit
from onestream.measure.tables import NOT_MEASURED

_GRACE_S = 0.5
_FLAT_PERCENT = 5.0
_Row = tuple[str, str, str]


def table(results: Raw) -> str:
    """A row for each quantity, with what was aimed at; parts that were not measured say so."""
    parts: dict[str, Raw] = results["parts"]
    machine = results["machine"]
    dates = sorted({part["started_utc"][:10] for part in parts.values()})
    commits = sorted({short_commit(part["commit"]) for part in parts.values()})
    about = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, {machine['system']}; "
        f"{', '.join(dates)}, commit {', '.join(commits)}."
    )
    rows: list[_Row] = []
    for part, rows_of in _ROWS.items():
        rows += rows_of(parts[part]) if part in parts else [(part, NOT_MEASURED, "not measured")]
    return f"{about}\n\n{markdown(['quantity', 'to reach', 'measured'], rows)}"


def _streams(found: Raw) -> list[_Row]:
    return [
        (
            f"{one['hostile']:,} hostile streams, with and without the metadata that ends Triton 2.51, {way}",
            "server alive, good streams unharmed",
            f"{'alive' if one['alive'] and found['same_server'] else '**died**'}; "
            f"{len(one['hurt'])} of {one['good_streams']} good streams hurt",
        )
        for way, one in found["ways"].items()
    ]


def _headers(found: Raw) -> list[_Row]:
    worst = max(found["worst_by_format"].values(), key=lambda one: float(one["ms"]))
    return [
        (
            f"header readers: {found['mutations']:,} mutations and built adversaries of up to 1 MB, all formats",
            "≤ 50 ms of CPU time",
            f"{found['worst_ms']:.1f} ms ({worst['input']}); {found['outcomes']['other errors']} untyped errors",
        )
    ]


def _requests(found: Raw) -> list[_Row]:
    return [
        (
            f"{found['hostile_requests']:,} hostile requests at the proxy",
            "server alive, good requests unharmed",
            f"{'alive' if found['server_alive'] else '**died**'}; "
            f"{len(found['good_failures'])} of {found['good_calls']:,} good ones hurt",
        )
    ]


def _pictures(found: Raw) -> list[_Row]:
    forms: dict[str, Raw] = found["forms"]
    good, bad = (sum(one[key] for one in forms.values()) for key in ("good", "bad"))
    return [
        (
            f"good requests hurt by {bad / max(1, good + bad):.0%} bad pictures among them, "
            f"{found['callers']} callers: {good:,} good ones to {', '.join(forms)}",
            "0",
            f"{sum(one['hurt'] for one in forms.values())}; restarts: {sum(found['restarts'].values())}",
        )
    ]


def _kills(found: Raw) -> list[_Row]:
    rounds = found["rounds"]
    slowest = max(rounds, key=lambda one: float(one["served_again_s"] or sys.maxsize))
    late = sum(one["served_again_s"] is None or one["served_again_s"] > 15 for one in rounds)
    left = ", ".join(
        f"{found[key]} {what}"
        for key, what in (("orphans", "orphans"), ("regions_left", "regions"), ("folders_left", "folders"))
    )
    return [
        (
            f"kill -9 and SIGSTOP of every process of a server, in {len(rounds)} rounds under load",
            "served again within 15 s each time, nothing left",
            f"slowest {found['slowest_recovery_s']:.1f} s ({slowest['signal']} of {slowest['victim']}), {late} above "
            f"15 s; left: {left}; {sum(found['untyped'].values())} untyped errors of {found['requests']:,} requests",
        )
    ]


def _clients(found: Raw) -> list[_Row]:
    late = sum(one["late_s"] > _GRACE_S for one in found["failed"])
    return [
        (
            f"{found['cases']} broken servers, HTTP and gRPC, against both clients: {found['runs']:,} calls",
            "typed error within the deadline + 0.5 s, memory bounded",
            f"{found['untyped']} untyped, {late} late (worst {found['worst_s_after_the_deadline']:.2f} s), "
            f"at most {found['most_memory_mib']:.0f} MiB",
        )
    ]


def _soak(found: Raw) -> list[_Row]:
    growth: dict[str, float] = found["growth_percent"]
    above = [f"{name} {percent:+.1f} %" for name, percent in growth.items() if percent > _FLAT_PERCENT]
    share = found["hostile"] / max(1, found["hostile"] + found["good"])
    failure = f"; {found['failure']}" if found["failure"] else ""
    return [
        (
            f"good requests hurt in a soak of {found['minutes']:g} minutes with {share:.0%} hostile ones: "
            f"{found['good_pictures']:,} good pictures and {found['good_streams']:,} good streams "
            f"({found['good_frames']:,} frames)",
            "0",
            f"{found['good_hurt']}; restarts: {sum(found['restarts'].values())}{failure}",
        ),
        (
            f"growth of each process's own memory after {found['warm_up_s'] / 60:g} minutes",
            "within 5 %, or explained",
            ", ".join(above) + " " + "/ the others within 5 %" if above else "all within 5 %",
        ),
    ]


_ROWS: dict[str, Callable[[Raw], list[_Row]]] = {
    "streams": _streams,
    "headers": _headers,
    "requests": _requests,
    "pictures": _pictures,
    "kills": _kills,
    "clients": _clients,
    "soak": _soak,
}
