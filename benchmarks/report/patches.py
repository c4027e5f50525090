"""The table of patches of vision-language models."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.pages import markdown
from benchmarks.result_files import Raw, dated
from onestream.measure.spread import Spread, ratio
from onestream.measure.tables import NOT_MEASURED

_THEIRS = ("slow", "fast")


def patches(results: Raw) -> str:
    """CPU time and pictures per second by competitor and picture size, and theirs divided by ours."""
    cores: dict[str, Raw] = results["cores"]
    about = (
        f"Patches of Qwen2-VL from encoded pictures (`python -m benchmarks.patches`), one picture a call, a calling "
        f"thread a core; {dated(results)}. Median (quartiles) of {results['rounds']} rounds. Ratios are of CPU "
        f"time, which other programs disturb little; pictures/s are for a quiet machine: the load average was "
        f"{results['load_average']}. The last column is the largest difference of a normalized value from those of "
        "transformers' slow and fast image processors; 0 is equal in every bit."
    )
    rows = []
    for size, names in cores["1"].items():
        cpu_ms = {name: _by_round(rounds, "cpu_ms") for name, rounds in names.items()}
        for name in names:
            against = [ratio(cpu_ms[f"transformers {one}, float32"], cpu_ms[name]) for one in _THEIRS]
            rates = [_by_round(sizes[size][name], "pictures_per_s") for sizes in cores.values()]
            added = ratio(rates[-1], rates[0])
            differs = results.get("differences", {}).get(size, {}).get(name)
            rows.append(
                [
                    *(size, name, Spread.of(list(cpu_ms[name].values())).text(1)),
                    *(one.text(1) if one and not name.startswith("transformers") else "" for one in against),
                    *(Spread.of(list(one.values())).text(1) for one in rates),
                    added.text(2) if added else NOT_MEASURED,
                    " / ".join(f"{differs[one]:.2g}" for one in _THEIRS) if differs else "",
                ]
            )
    head = ["picture", "processor", "CPU ms a picture, 1 core", "slow ÷ it", "fast ÷ it"]
    head += [f"pictures/s, {count} core{'s' * (count != '1')}" for count in cores]
    return f"{about}\n\n{markdown([*head, f'{max(cores)} cores ÷ 1', 'differs from slow / fast'], rows)}"


def _by_round(rounds: Sequence[Raw], quantity: str) -> dict[int, float]:
    return {number: one[quantity] for number, one in enumerate(rounds)}
