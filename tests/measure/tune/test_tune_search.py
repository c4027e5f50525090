"""The search finds the best setting of a made-up machine, and trusts nothing that it cannot find twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from onestream.measure.tune.decide import Measurement
from onestream.measure.tune.knobs import knobs_for
from onestream.measure.tune.report import again_of, rows_of
from onestream.measure.tune.search import Outcome, OutOfTime, SettingFailed, search
from onestream.serving.pipeline import GpuOptions, ServingOptions

KNOBS = knobs_for("cpu", cores=4, concurrency=16, ensemble=False)
ROUNDS = 6
FIRST = Measurement(images_per_s=1, p50_ms=1, p99_ms=1)


class Machine:
    """Serves each setting at a given speed, without noise, and notes what it was asked to compare.

    The final comparison may find others, ``again``; settings that are ``broken`` cannot be served.
    """

    def __init__(
        self,
        speed: Callable[[ServingOptions], float],
        *,
        again: Callable[[ServingOptions], float] | None = None,
        broken: Callable[[ServingOptions], bool] = lambda _: False,
        p99: Callable[[ServingOptions], float] = lambda _: 10.0,
        comparisons: int = 1000,
    ) -> None:
        self.speed, self.again, self.broken = speed, again or speed, broken
        self.p99, self.comparisons = p99, comparisons
        self.asked: list[tuple[list[ServingOptions], bool]] = []

    def __call__(self, settings: Sequence[ServingOptions], *, final: bool = False) -> list[list[Measurement]]:
        if not final and len(self.asked) >= self.comparisons:
            raise OutOfTime
        for options in filter(self.broken, settings):
            raise SettingFailed(options, "no memory")
        self.asked.append((list(settings), final))
        speed = self.again if final else self.speed
        return [
            [Measurement(images_per_s=speed(options), p50_ms=5.0, p99_ms=self.p99(options))] * ROUNDS
            for options in settings
        ]


def run(machine: Machine, start: ServingOptions | None = None, *, p99_ms: float | None = None) -> Outcome:
    return search(start or ServingOptions(), KNOBS, device="cpu", cores=4, compare=machine, p99_ms=p99_ms)


def one_peak(options: ServingOptions) -> float:
    """Fastest with batches of 2, one process more than cores and one thread."""
    instances = 4 if options.cpu_instances == "cores" else options.cpu_instances
    return 100 / (1 + abs(options.max_batch_size - 2) / 10 + abs(instances - 5) / 10 + (options.cpu_threads - 1) / 10)


def test_it_climbs_to_the_peak_along_every_knob() -> None:
    """No setting is tried twice, and every one against the best before it; the winner is compared once more."""
    machine = Machine(one_peak)
    outcome = run(machine)
    assert outcome.best == ServingOptions(max_batch_size=2, cpu_instances=5, cpu_threads=1)
    assert outcome.confirmation.winner == outcome.best
    assert not outcome.out_of_time
    best, tried = ServingOptions(), [ServingOptions()]
    for (challenger, other), final in machine.asked[:-1]:
        assert not final
        assert other == best
        assert challenger not in tried
        tried.append(challenger)
        best = challenger if one_peak(challenger) > 1.01 * one_peak(best) else best
    # What is found before the time is up counts.
    outcome = run(Machine(one_peak, comparisons=2))
    assert (outcome.out_of_time, outcome.best) == (True, ServingOptions(max_batch_size=4))


def test_where_nothing_is_better_the_file_stays() -> None:
    machine = Machine(lambda _: 100.0)
    outcome = run(machine, ServingOptions(max_batch_size=3))
    assert (outcome.best, outcome.confirmation) == (ServingOptions(max_batch_size=3), None)
    assert not any(final for _, final in machine.asked)


def test_the_defaults_are_tried_first_and_chosen_where_the_file_is_worse() -> None:
    machine = Machine(lambda options: 100.0 if options.max_batch_size == 8 else 50.0)
    outcome = run(machine, ServingOptions(max_batch_size=1, max_queue_size=7))
    assert machine.asked[0][0][0] == ServingOptions(max_queue_size=7)
    assert outcome.best == ServingOptions(max_queue_size=7)
    assert outcome.confirmation.to_defaults is None


def test_a_winner_that_does_not_win_again_is_not_chosen() -> None:
    outcome = run(Machine(one_peak, again=lambda _: 100.0))
    assert outcome.best == ServingOptions()
    assert outcome.confirmation.winner == ServingOptions(max_batch_size=2, cpu_instances=5)
    assert not outcome.confirmation.winner_judgement.better
    # But the defaults are, where they do.
    machine = Machine(one_peak, again=lambda options: min(one_peak(options), one_peak(ServingOptions())))
    outcome = run(machine, ServingOptions(max_batch_size=16))
    assert outcome.best == ServingOptions()
    assert outcome.confirmation.to_defaults is None
    assert outcome.confirmation.to_start.better


def test_a_setting_that_cannot_be_served_is_noted_and_passed_over() -> None:
    outcome = run(Machine(one_peak, broken=lambda options: options.max_batch_size == 4))
    (failed,) = [trial for trial in outcome.trials if trial.failure]
    assert (failed.options.max_batch_size, failed.failure) == (4, "no memory")
    assert outcome.best.cpu_instances == 5
    # So are the defaults, where they are not the start.
    machine = Machine(one_peak, broken=lambda options: options == ServingOptions())
    outcome = run(machine, ServingOptions(max_batch_size=4))
    assert outcome.best == ServingOptions(max_batch_size=2, cpu_instances=5)
    assert outcome.confirmation.to_start is not None
    assert outcome.confirmation.to_defaults is None
    assert all(row.to_defaults is None for row in rows_of(outcome, KNOBS, FIRST))
    with pytest.raises(SettingFailed, match="no memory"):
        run(machine)


def test_the_limit_on_p99_comes_before_images_per_second() -> None:
    """If no setting meets the bound, the least p99 is chosen and reported as too long."""
    machine = Machine(lambda options: 100.0 * options.max_batch_size, p99=lambda options: 10.0 * options.max_batch_size)
    for limit_ms, size, keeps in ((45, 4, True), (5, 1, False)):
        outcome = run(machine, p99_ms=limit_ms)
        assert (outcome.best.max_batch_size, outcome.keeps_limit) == (size, keeps)


def test_on_a_gpu_every_place_to_decode_is_tried() -> None:
    knobs = knobs_for("gpu", cores=8, concurrency=256, ensemble=False)
    speed = {"gpu": 100.0, "hybrid": 110.0, "cpu": 90.0}
    machine = Machine(lambda options: speed[options.gpu.decode] * (1.2 if options.gpu.backend == "dali" else 1))
    outcome = search(ServingOptions(), knobs, device="gpu", cores=8, compare=machine)
    assert outcome.best.gpu == GpuOptions(decode="hybrid", backend="dali")
    assert {settings[0].gpu.decode for settings, _ in machine.asked} == {"gpu", "hybrid", "cpu"}


def test_ratios_of_a_report_lead_to_the_defaults() -> None:
    """Speeds are without noise, so the ratios along the way multiply to the true ones."""
    start, machine = ServingOptions(max_batch_size=16), Machine(one_peak)
    outcome = run(machine, start)
    assert machine.asked[-1] == ([start, ServingOptions(), outcome.best], True)
    assert outcome.confirmation.to_defaults.ratio.median == pytest.approx(1.7)
    for row in rows_of(outcome, KNOBS, FIRST):
        options = ServingOptions.model_validate(row.settings)
        assert row.to_defaults.median == pytest.approx(one_peak(options) / one_peak(ServingOptions()))
    assert again_of(outcome, KNOBS).confirmed
