"""What a run of the overload benchmark found, as a file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from benchmarks.overload.offered import Outcome, percentile
from benchmarks.result_files import FROZEN, Machine
from onestream.measure.spread import Spread

FILE_NAME = "overload.json"

Variant = Literal["bounded", "unbounded"]
VARIANTS: tuple[Variant, ...] = ("bounded", "unbounded")


class OfferedLoad(BaseModel):
    """One run at ``share`` of the capacity of its round. Latencies are in milliseconds, None where there were none.

    ``goodput_per_s`` counts answers within the deadline; ``refused_per_s`` UNAVAILABLE; ``expired_per_s`` what got
    nothing within the deadline. ``sent_late`` requests left the load generator more than 50 ms after they were due.
    """

    model_config = FROZEN

    round: int
    form: str
    variant: Variant
    share: float
    capacity_per_s: float
    offered_per_s: float
    goodput_per_s: float
    refused_per_s: float
    expired_per_s: float
    failed: int
    failure: str
    sent_late: int
    p50_ms: float | None
    p99_ms: float | None
    refused_p50_ms: float | None
    refused_p99_ms: float | None

    @staticmethod
    def of(outcome: Outcome, *, number: int, form: str, variant: Variant, share: float, capacity: float) -> OfferedLoad:
        """What the file keeps of an outcome."""
        return OfferedLoad(
            round=number,
            form=form,
            variant=variant,
            share=share,
            capacity_per_s=capacity,
            offered_per_s=outcome.offered / outcome.seconds,
            goodput_per_s=outcome.goodput_per_s,
            refused_per_s=len(outcome.refused_ms) / outcome.seconds,
            expired_per_s=outcome.expired / outcome.seconds,
            failed=outcome.failed,
            failure=outcome.failure,
            sent_late=outcome.sent_late,
            p50_ms=percentile(outcome.answered_ms, 0.5),
            p99_ms=percentile(outcome.answered_ms, 0.99),
            refused_p50_ms=percentile(outcome.refused_ms, 0.5),
            refused_p99_ms=percentile(outcome.refused_ms, 0.99),
        )

    def __str__(self) -> str:
        p99 = "-" if self.p99_ms is None else f"{self.p99_ms:.0f} ms"
        return (
            f"{self.form}, {self.variant}, {self.share:g} × capacity: {self.offered_per_s:.0f}/s offered, "
            f"{self.goodput_per_s:.0f} answered (p99 {p99}), {self.refused_per_s:.0f} refused, "
            f"{self.expired_per_s:.0f} too late"
        )


class Capacity(BaseModel):
    """Images per second to 8 callers who wait for their answers, in one round."""

    model_config = FROZEN

    round: int
    form: str
    variant: Variant
    per_s: float


class OverloadResults(BaseModel):
    """A run on one machine. ``load_cores`` are the load generator's own, 0 where it shared the server's."""

    model_config = FROZEN

    machine: Machine
    commit: str
    started_utc: str
    server_cores: int
    load_cores: int
    rounds: int
    seconds: float
    deadline_s: float
    capacities: list[Capacity]
    points: list[OfferedLoad]

    def cost(self, form: str) -> Spread:
        """Capacity with bounds, divided by that without."""
        per_s = {(one.round, one.variant): one.per_s for one in self.capacities if one.form == form}
        numbers = sorted({number for number, _ in per_s})
        return Spread.of([per_s[number, "bounded"] / per_s[number, "unbounded"] for number in numbers])

    def of(self, form: str, variant: Variant, share: float) -> list[OfferedLoad]:
        """The rounds of one point."""
        return [one for one in self.points if (one.form, one.variant, one.share) == (form, variant, share)]

    @property
    def forms(self) -> list[str]:
        """In the order of measuring."""
        return list(dict.fromkeys(one.form for one in self.points))

    @property
    def shares(self) -> list[float]:
        """Of the capacity, ascending."""
        return sorted({one.share for one in self.points})
