"""The tables of served pipelines, of one run and of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.competitors import CONTESTS
from benchmarks.photos import Size, mean_kilobytes, title
from benchmarks.plan import MAIN_LOAD, ONE_AT_A_TIME
from benchmarks.report.pages import markdown
from benchmarks.results import Competitor, Part, Results, Served, Where
from onestream.measure.load.perf_analyzer import Load, Transport
from onestream.measure.spread import Spread, ratio
from onestream.measure.tables import NOT_MEASURED

_MUCH_OTHER_USE = 0.05
_FEW_PER_S = 10
_Value = Callable[[Served], float]
_Quantity = Callable[[Size], "Spread | None"]


def full(results: Results) -> str:
    """Every table of one run."""
    parts = [_about(results), ratios(results)]
    if results.served:
        parts += [_served(results), _plain_trials(results), _agreement(results)]
    if results.in_process:
        parts.append(_in_process(results))
    if results.cpu_time:
        parts.append(_cpu_time(results))
    return "\n".join(parts)


def summary(results: Sequence[Results], *, link_to: str) -> str:
    """For each machine the ratios and a few absolute numbers; empty without results.

    ``link_to`` is the folder of results, as the page's links name it.
    """
    return "\n".join(
        f"{_about(one)}\n{ratios(one)}\n{_absolute(one)}\n"
        f"![Throughput and p99 against concurrency]({link_to}/{one.machine.slug}/"
        f"{CONTESTS[one.pipeline].file('throughput.png')})\n"
        for one in results
    )


def ratios(results: Results) -> str:
    """The ratios that are aimed at, with quartiles over rounds, higher or lower as each row says."""
    ours, fused = results.pipeline, results.fused

    def against_plain(
        value: _Value,
        competitor: Competitor,
        *,
        load: Load = MAIN_LOAD,
        transport: Transport = "grpc",
        part: Part = "whole",
        plain: Competitor = "plain",
    ) -> _Quantity:
        def of(size: Size) -> Spread | None:
            where = Where(size, load, transport, part)
            return ratio(results.rounds_of(value, competitor, where), results.rounds_of(value, plain, where))

        return of

    def against_limit(transport: Transport) -> _Quantity:
        def of(size: Size) -> Spread | None:
            where = Where(size, MAIN_LOAD, transport)
            return ratio(results.rounds_of(_throughput, fused, where), results.limit(size))

        return of

    def limit_against_plain(size: Size) -> Spread | None:
        return ratio(results.limit(size), results.rounds_of(_throughput, "plain", Where(size, MAIN_LOAD)))

    def of_bare_decode(timed: str) -> _Quantity:
        return lambda size: ratio(_cpu(results, size, timed), _cpu(results, size, "bare decode"))

    def beside_networks(size: Size) -> Spread | None:
        return ratio(_cpu(results, size, "everything but the networks"), _cpu(results, size, "networks"))

    rows: list[tuple[str, str, _Quantity]] = [
        (f"images/s: {fused} ÷ plain", "higher", against_plain(_throughput, fused)),
        (f"images/s: {ours} ÷ plain", "higher", against_plain(_throughput, ours)),
        (f"images/s: {ours} ÷ {fused}", "higher", against_plain(_throughput, ours, plain=fused)),
        (
            f"images/s: {fused} ÷ plain with default settings",
            "higher",
            against_plain(_throughput, fused, plain="plain_default"),
        ),
        (
            f"images/s: {ours} ÷ plain with default settings",
            "higher",
            against_plain(_throughput, ours, plain="plain_default"),
        ),
        (f"images/s: {fused} ÷ plain, HTTP", "higher", against_plain(_throughput, fused, transport="http")),
        (
            f"images/s: {fused} ÷ plain, shared memory",
            "higher",
            against_plain(_throughput, fused, transport="grpc+shm"),
        ),
        (f"p50 at concurrency 1: {fused} ÷ plain", "lower", against_plain(_p50, fused, load=ONE_AT_A_TIME)),
        (f"p50 at concurrency 1: {ours} ÷ plain", "lower", against_plain(_p50, ours, load=ONE_AT_A_TIME)),
        ("images/s: in process, without any server ÷ plain", "–", limit_against_plain),
        (f"images/s: {fused} by gRPC ÷ in process", "higher", against_limit("grpc")),
        (f"images/s: {fused} by shared memory ÷ in process", "higher", against_limit("grpc+shm")),
    ]
    if any("networks" in one.milliseconds for one in results.cpu_time):
        rows.append(("CPU time: everything but the networks ÷ the networks", "lower", beside_networks))
    if not CONTESTS[results.pipeline].cascade:
        rows += [
            (
                f"images/s: {ours}_preprocess ÷ plain preprocessing, each alone",
                "higher",
                against_plain(_throughput, ours, transport="grpc+shm", part="preprocess"),
            ),
            ("CPU time: decode to float32 ÷ bare full decode", "lower", of_bare_decode("definition")),
            ("CPU time: decode to uint8 pixels ÷ bare full decode", "lower", of_bare_decode("pixels")),
        ]
    for change in CONTESTS[ours].changes:
        changed, baseline = change.fused(ours), change.baseline(ours)
        if any(one.competitor == changed for one in results.served):
            name = f"images/s: {changed} ÷ {baseline}"
            rows.append((name, "higher", against_plain(_throughput, changed, plain=baseline)))
    if any("boxes" in one.milliseconds for one in results.cpu_time):
        name = "CPU ms an image: from outputs to boxes, score threshold 0.05"
        rows.append((name, "lower", lambda size: Spread.of(list(_after_network(results, size).values()))))
    sizes = _sizes(results)
    return markdown(
        ["quantity (concurrency 8 where not said)", "better", *(title(size) for size in sizes)],
        [[name, better, *(_text(quantity(size), 2) for size in sizes)] for name, better, quantity in rows],
    )


def _about(results: Results) -> str:
    machine, versions = results.machine, results.versions
    libraries = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    sizes = ", ".join(
        f"{len(own)} of {title(size)} ({mean_kilobytes(tuple(own)):.0f} KB each)"
        for size in _sizes(results)
        if (own := [photo for photo in results.photos if photo.size == size])
    )
    lines = [
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB, {machine.system}; "
        f"{results.dated}. Photos: {sizes}. "
        f"Median (quartiles) of {results.rounds} rounds of {results.duration_s:g} s. {libraries}.",
    ]
    if results.quick:
        lines.append("A quick run: short, and no basis for a claim.")
    others = [one.others_cpu_share for one in results.served]
    if others and max(others) > _MUCH_OTHER_USE:
        lines.append(
            f"Other programs used up to {max(others):.0%} of the machine (median {Spread.of(others).median:.0%})."
        )
    return "\n".join(lines) + "\n"


def _absolute(results: Results) -> str:
    rows = []
    for size in _sizes(results):
        busy, alone = Where(size, MAIN_LOAD), Where(size, ONE_AT_A_TIME)
        for competitor in results.measured_at(busy):
            cells = [
                _rate_text(results.rounds_of(_throughput, competitor, busy)),
                _spread_text(results.rounds_of(_p99, competitor, busy), 0),
                _spread_text(results.rounds_of(_p50, competitor, alone), 1),
            ]
            rows.append([title(size), competitor, *cells])
    return markdown(["photos", "served", "images/s", "p99, ms", "p50 at concurrency 1, ms"], rows)


def _served(results: Results) -> str:
    columns: list[tuple[_Value, int]] = [
        (_throughput, 1),
        (_p50, 1),
        (_p99, 1),
        (lambda one: one.server_cpu_ms, 2),
        (lambda one: one.images_per_execution, 1),
    ]
    rows = []
    for where in dict.fromkeys(one.where for one in results.served):
        for competitor in results.measured_at(where):
            name = competitor if where.part == "whole" else f"{competitor}, {where.part} alone"
            cells = [_spread_text(results.rounds_of(value, competitor, where), digits) for value, digits in columns]
            rows.append([title(where.size), str(where.load), where.transport, name, *cells])
    return markdown(
        ["photos", "load", "by", "served", "images/s", "p50, ms", "p99, ms", "server CPU, ms/image", "batch"], rows
    )


def _plain_trials(results: Results) -> str:
    rows = []
    for size in _sizes(results):
        for setting in dict.fromkeys(trial.setting for trial in results.plain_trials):
            rates = [t.inferences_per_s for t in results.plain_trials if (t.size, t.setting) == (size, setting)]
            chosen = "chosen" if results.plain_setting.get(size) == setting else ""
            rows.append([title(size), setting, _text(Spread.of(rates) if rates else None, 1), chosen])
    return markdown(["photos", "setting of the plain competitor", "images/s", ""], rows)


def _agreement(results: Results) -> str:
    same = "same texts by all" if CONTESTS[results.pipeline].cascade else "same best class by all"
    head = ["photos", same, "competitor", "largest difference of a score from plain"]
    has_boxes = any(one.least_overlap for one in results.agreement)
    has_texts = any(one.equal_texts for one in results.agreement)
    rows = []
    for one in results.agreement:
        for competitor, difference in one.largest_difference.items():
            row = [title(one.size), f"{one.best_classes_equal} of {one.photos}", competitor, f"{difference:.4f}"]
            row += [f"{one.least_overlap[competitor]:.3f}"] if has_boxes else []
            rows.append([*row, f"{one.equal_texts[competitor]:.1%}"] if has_texts else row)
    head += [f"least overlap of a {'line' if has_texts else 'box'} with plain's"] if has_boxes else []
    return markdown([*head, "lines that both read equally"] if has_texts else head, rows)


def _in_process(results: Results) -> str:
    keys = dict.fromkeys((one.size, one.batch, one.processes) for one in results.in_process)
    rows = []
    for size, batch, processes in keys:
        rates = [one.images_per_s for one in results.in_process if (one.size, one.batch) == (size, batch)]
        rows.append([title(size), str(processes), str(batch), _text(Spread.of(rates), 1)])
    return markdown(["photos", "processes", "batch", "images/s in process"], rows)


def _cpu_time(results: Results) -> str:
    rows = []
    for size in _sizes(results):
        for timed in results.cpu_time[0].milliseconds:
            rows.append([title(size), timed, _spread_text(_cpu(results, size, timed), 2)])
    return markdown(["photos", "timed", "CPU ms/image"], rows)


def _cpu(results: Results, size: Size, timed: str) -> dict[int, float]:
    return {one.round: one.milliseconds[timed] for one in results.cpu_time if one.size == size}


def _after_network(results: Results, size: Size) -> dict[int, float]:
    """CPU milliseconds of decoding and suppression: the tail's nodes within the network, then the host's part."""
    bare, whole = _cpu(results, size, "network"), _cpu(results, size, "network with tail")
    return {number: whole[number] - bare[number] + ms for number, ms in _cpu(results, size, "boxes").items()}


def _throughput(one: Served) -> float:
    return one.export.inferences_per_s


def _p50(one: Served) -> float:
    return one.export.p50_ms


def _p99(one: Served) -> float:
    return one.export.p99_ms


def _sizes(results: Results) -> list[Size]:
    return list(dict.fromkeys(photo.size for photo in results.photos))


def _text(spread: Spread | None, digits: int) -> str:
    return NOT_MEASURED if spread is None else spread.text(digits)


def _rate_text(rounds: dict[int, float]) -> str:
    """Whole images a second, or tenths where there are less than ten."""
    return _spread_text(rounds, 1 if rounds and min(rounds.values()) < _FEW_PER_S else 0)


def _spread_text(rounds: dict[int, float], digits: int) -> str:
    return _text(Spread.of(list(rounds.values())) if rounds else None, digits)
