"""What is measured, and how CPU time is accounted."""

from __future__ import annotations

import pytest

from benchmarks.plan import FULL, at_main_load, competitors, points
from benchmarks.usage import Usage
from onestream.measure.load.perf_analyzer import Load
from onestream.measure.plan import rotated


def test_every_load_is_put_on_every_competitor() -> None:
    pipeline = "detect"
    *whole, alone = points(FULL, pipeline, rate=70)
    assert (alone.part, alone.competitors) == ("preprocess", ("plain", pipeline))
    every, at_main_load_too = ("plain", pipeline, f"{pipeline}_fused"), at_main_load(pipeline)
    ours = (f"{pipeline}_int8_fused", f"{pipeline}_unbounded", f"{pipeline}_unbounded_fused")
    assert at_main_load_too == ("plain_default", *every, *ours)
    assert all(
        point.competitors == (at_main_load_too if point == whole[list(FULL.concurrencies).index(8)] else every)
        for point in whole
    )
    by_grpc = [point.load for point in whole if point.transport == "grpc"]
    assert by_grpc == [*(Load(kind="concurrency", value=n) for n in (1, 4, 8, 16)), Load(kind="rate", value=70)]
    assert {point.transport for point in whole} == {"grpc", "http", "grpc+shm"}


def test_a_cascade_has_no_preprocessing_to_be_measured_alone() -> None:
    of_cascade = points(FULL, "read", rate=70, cascade=True)
    assert len(of_cascade) == len(FULL.concurrencies) + 3
    measured = [competitor for point in of_cascade for competitor in point.competitors]
    assert not any("int8" in competitor or "unbounded" in competitor for competitor in measured)


def test_each_competitor_is_first_equally_often() -> None:
    every = competitors("detect")
    orders = [rotated(every, index) for index in range(6)]
    assert all(sorted(order) == sorted(every) for order in orders)
    assert [order[0] for order in orders] == [*every, *every]


def usage(*, server_s: float, own_s: float, busy_s: float, idle_s: float, images: int, executions: int) -> Usage:
    return Usage(server_s=server_s, own_s=own_s, busy_s=busy_s, idle_s=idle_s, images=images, executions=executions)


def test_usage_between_two_moments() -> None:
    before = usage(server_s=10, own_s=12, busy_s=100, idle_s=50, images=100, executions=90)
    after = usage(server_s=18, own_s=21, busy_s=111, idle_s=59, images=1100, executions=340)
    assert after.images_per_execution(before) == 4
    assert after.server_cpu_ms(before) == 8
    assert after.others_cpu_share(before) == pytest.approx((11 - 9) / 20)
    assert (after.images_per_execution(after), after.server_cpu_ms(after), after.others_cpu_share(after)) == (0, 0, 0)
