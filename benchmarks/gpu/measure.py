"""Interleaved rounds: in each, every competitor is measured once at every point, and each round begins with another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.lanes import Batch, Lanes
from benchmarks.gpu.results import Family, Part, Rate
from benchmarks.photos import Size
from onestream.measure.plan import rotated

_LONGEST_REASON = 400


class Photos:
    """Random batches of many photos of one size: each photo once before any comes again."""

    def __init__(self, size: Size, contents: Sequence[bytes], *, seed: int) -> None:
        self.size: Size = size
        self.contents = contents
        self._rng = np.random.default_rng((seed, len(contents)))
        self._order: list[int] = []

    def pick(self, batch: int) -> list[bytes]:
        """The next ``batch`` photos; a batch larger than the set holds some several times."""
        while len(self._order) < batch:
            self._order += self._rng.permutation(len(self.contents)).tolist()
        chosen, self._order = self._order[:batch], self._order[batch:]
        return [self.contents[index] for index in chosen]


@dataclass(frozen=True, slots=True)
class Workload:
    """What one measurement runs: ``run`` on the states of ``lanes``, with ``in_flight`` batches at the same time.

    ``photos`` is None where a batch is a number of rows only.
    """

    part: Part
    setting: str
    lanes: Lanes[Any]
    run: Callable[[Any, Batch], None]
    photos: Photos | None
    batch: int
    in_flight: int
    family: Family | None = None

    @property
    def size(self) -> Size | None:
        """Of the photos."""
        return self.photos.size if self.photos else None

    def pick(self) -> Batch:
        """The next batch."""
        return self.photos.pick(self.batch) if self.photos else (b"",) * self.batch


def measure(
    points: Sequence[Workload],
    *,
    rounds: int,
    duration_s: float,
    deadline: float,
    missing: dict[str, str],
    progress: Callable[[str], None],
) -> list[Rate]:
    """Every point ``rounds`` times, after a warm-up.

    A round is begun only where one as long as the last would end before ``deadline`` (``time.monotonic``), but for the
    first. A setting that fails is left out from then on, with its reason in ``missing``.
    """
    rates: list[Rate] = []
    left = list(points)
    warm: set[tuple[int, str, Size | None, int]] = set()

    def attempt(point: Workload, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as error:  # whatever a library raises, the others are still measured
            missing[f"{point.part}: {point.setting}"] = reason(error)
            left[:] = [other for other in left if (other.part, other.setting) != (point.part, point.setting)]

    for point in points:
        key = (id(point.lanes), point.setting, point.size, point.batch)
        if point in left and key not in warm:
            warm.add(key)
            attempt(point, partial(point.lanes.warm_up, point.run, point.pick))
    took_s = 0.0
    for index in range(rounds):
        began = time.monotonic()
        if index and began + took_s > deadline:
            progress(f"the time is up after {index} of {rounds} rounds")
            break
        progress(f"round {index + 1} of {rounds}, {len(left)} points")
        for point in rotated(left, index, rounds=rounds):
            if point in left:
                attempt(point, partial(_once, point, index, duration_s, rates))
        took_s = time.monotonic() - began
    return rates


def _once(point: Workload, index: int, duration_s: float, rates: list[Rate]) -> None:
    rate = point.lanes.rate(point.run, point.pick, in_flight=point.in_flight, duration_s=duration_s)
    rates.append(
        Rate(
            round=index,
            part=point.part,
            setting=point.setting,
            family=point.family,
            size=point.size,
            batch=point.batch,
            in_flight=point.in_flight,
            images_per_s=rate,
        )
    )


def reason(error: Exception) -> str:
    """An error as one short line."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 3] + "..."
