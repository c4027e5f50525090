"""The one table of a run: what is aimed at, then every rate, time and difference behind it, then what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.gpu.results import FAMILIES, Agreement, GpuResults, Part, Rounds
from benchmarks.photos import Size, title
from benchmarks.report.pages import markdown
from onestream.measure.spread import Spread, ratio

NOT_MEASURED = "On a GPU: not measured.\n"
_PRECISIONS = ("fp32", "tf32", "fp16")
_NONE = "not measured"
_Row = list[str]


def summaries(results: Sequence[GpuResults]) -> str:
    """For each GPU what is aimed at and the fastest rates, or that nothing was measured."""
    return "\n".join(summary(one) for one in results) if results else NOT_MEASURED


def summary(results: GpuResults) -> str:
    """The aims and the fastest rates of one run."""
    return _table(results, [*_aims(results), *_fastest(results)])


def full(results: GpuResults) -> str:
    """Everything of one run in one table."""
    rows = [*_aims(results), *_fastest(results), *_rates(results), *_steps(results), *_agreement(results)]
    return _table(results, rows)


def _table(results: GpuResults, rows: Iterable[_Row]) -> str:
    titles = [title(size) for size in _sizes(results)]
    missing = [
        [f"not measured: {what}", "", why, *[""] * (len(titles) - 1)] for what, why in results.not_measured.items()
    ]
    return f"{_about(results)}\n\n{markdown(['quantity', 'to reach', *titles], [*rows, *missing])}"


def _about(results: GpuResults) -> str:
    photos = ", ".join(f"{one.count} of {title(one.size)} ({one.mean_kilobytes:.0f} KB each)" for one in results.photos)
    network = f" {results.engine} runs the network." if results.engine else ""
    libraries = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    return (
        f"{results.gpu}; {results.machine.cpu}, {results.cores} cores; {results.dated}. "
        f"Photos: {photos}. Median (quartiles) of {results.rounds_made} rounds of "
        f"{results.duration_s:g} s.{network} {libraries}."
    )


def _aims(results: GpuResults) -> list[_Row]:
    sizes = _sizes(results)
    opencv = {size: results.fastest("preprocess", size, family="OpenCV") for size in sizes}
    rows = []
    for family in FAMILIES[:2]:
        for batch in sorted({one.batch for one in results.rates if one.family == family}):
            cells = [_ratio(results.fastest("preprocess", s, family=family, batch=batch), opencv[s]) for s in sizes]
            rows.append([f"preprocessing: {family} ÷ OpenCV on all cores, batch {batch}", "≥ 20", *cells])
    for precision in _PRECISIONS:
        network = results.fastest("network alone", None, setting=precision)
        cells = [
            _ratio(
                results.fastest("fused", size, setting=precision),
                _slower(results.fastest("decode alone", size), network),
            )
            for size in sizes
        ]
        rows.append([f"fused ÷ the slower of decoding alone and network alone, {precision}", "≥ 0.9", *cells])
    ensemble, fused = "classify", "classify_fused"
    cells = [
        _ratio(results.fastest("served", size, setting=fused), results.fastest("served", size, setting=ensemble))
        for size in sizes
    ]
    rows.append([f"served: {fused} ÷ {ensemble}", "≥ 1.3", *cells])
    waits = [[one.waits for one in results.steps if one.size == size] for size in sizes]
    rows.append(
        ["host waits of our own for a fused batch", "1", *(f"{max(found):g}" if found else _NONE for found in waits)]
    )
    return rows


def _fastest(results: GpuResults) -> list[_Row]:
    sizes = _sizes(results)
    rows = [
        [
            f"images/s: {family}, in its fastest setting",
            "",
            *(_text(results.fastest("preprocess", s, family=family)) for s in sizes),
        ]
        for family in FAMILIES
    ]
    parts: list[tuple[str, Part, str | None]] = [("decoding alone", "decode alone", None)]
    for precision in _PRECISIONS:
        parts.append((f"network alone, {precision}", "network alone", precision))
        parts.append((f"fused, {precision}", "fused", precision))
    for name, part, setting in parts:
        cells = [_text(results.fastest(part, _photos_of(part, size), setting=setting)) for size in sizes]
        rows.append([f"images/s: {name}, in its fastest setting", "", *cells])
    return rows


def _rates(results: GpuResults) -> list[_Row]:
    keys = dict.fromkeys((one.part, one.setting, one.batch, one.in_flight, one.decode_threads) for one in results.rates)
    return [
        [
            f"images/s: {part}, {setting}, batch {batch}, {in_flight} in flight{_with_threads(threads)}",
            "",
            *(
                _text(
                    results.rounds_of(
                        part,
                        setting,
                        _photos_of(part, size),
                        batch=batch,
                        in_flight=in_flight,
                        decode_threads=threads,
                    )
                )
                for size in _sizes(results)
            ),
        ]
        for part, setting, batch, in_flight, threads in keys
    ]


def _with_threads(threads: int | None) -> str:
    return "" if threads is None else f", {threads} decoder threads"


def _steps(results: GpuResults) -> list[_Row]:
    found = {
        (one.precision, one.batch, one.size, step): f"{spent:.3f}"
        for one in results.steps
        for step, spent in one.milliseconds.items()
    }
    return [
        [
            f"GPU ms of a fused batch of {batch}, {precision}: {step}",
            "",
            *(found.get((precision, batch, size, step), _NONE) for size in _sizes(results)),
        ]
        for precision, batch, step in dict.fromkeys((key[0], key[1], key[3]) for key in found)
    ]


def _agreement(results: GpuResults) -> list[_Row]:
    found = {(one.part, one.setting, one.allowed, one.size): _agrees(one) for one in results.agreement}
    return [
        [
            f"agreement with the reference: {part}, {setting}",
            allowed,
            *(found.get((part, setting, allowed, size), _NONE) for size in _sizes(results)),
        ]
        for part, setting, allowed in dict.fromkeys(key[:3] for key in found)
    ]


def _agrees(one: Agreement) -> str:
    levels = "" if one.mean_levels is None else f"mean {one.mean_levels:.3f}, max {one.max_level:g} levels; "
    if one.flipped is None:
        return f"{levels}classes not compared"
    return f"{levels}{one.flipped} of {one.photos} with another best class"


def _sizes(results: GpuResults) -> list[Size]:
    return [one.size for one in results.photos]


def _photos_of(part: Part, size: Size) -> Size | None:
    """The network alone reads no photos, so its rates stand for every size."""
    return None if part == "network alone" else size


def _slower(one: Rounds, other: Rounds) -> Rounds:
    """The smaller rate of each round that holds both."""
    return {index: min(one[index], other[index]) for index in one.keys() & other.keys()}


def _ratio(numerator: Rounds, denominator: Rounds) -> str:
    found = ratio(numerator, denominator)
    return found.text(2) if found else _NONE


def _text(rounds: Rounds) -> str:
    return Spread.of(list(rounds.values())).text(0) if rounds else _NONE
