"""The arithmetic of many machines: by hand, and what must hold whatever the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxies import refused
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.measure.scale_out import Costs, estimate, machines_for

COSTS = Costs(image_bytes=400_000, cores=32, images_per_s_per_core=50, link_bits_per_s=10e9, store_bits_per_s=32e9)


def test_the_tightest_bound_is_told_first() -> None:
    """By hand: 32 x 50 = 1600 images/s of CPU; 10e9 / 8 / 400,000 = 3125 of the link; 10,000 of the store."""
    one = estimate(COSTS, 1)
    assert [(bound.name, bound.images_per_s) for bound in one.bounds] == [
        ("CPU", 1600),
        ("network of each machine", 3125),
        ("store", 10_000),
    ]
    assert one.hours(100_000_000) == pytest.approx(100_000_000 / 1600 / 3600)
    assert estimate(COSTS, 7).bounds[0].name == "store"
    # With GPUs the cores decode.
    two = estimate(replace(COSTS, gpus=2, images_per_s_per_gpu=700, images_per_s_per_core=100), 1)
    assert [bound.name for bound in two.bounds] == ["GPU", "network of each machine", "decoding", "store"]
    assert two.images_per_s == 1400


@given(st.integers(1, 10**9), st.floats(0.1, 1000))
def test_the_machines_are_enough_and_one_less_is_not(images: int, hours: float) -> None:
    costs = replace(COSTS, store_bits_per_s=None)
    count = machines_for(costs, images, hours)
    assert estimate(costs, count).hours(images) <= hours * (1 + 1e-9)
    if count > 1:
        assert estimate(costs, count - 1).hours(images) > hours * (1 - 1e-9)
    assert machines_for(COSTS, 100_000_000, 1.0) is None, "the store is too slow"
    assert machines_for(costs, 100_000_000, 1.0) == 18


def lines(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["bench", "scale", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_the_command_prints_machines_and_hours() -> None:
    """100 images/s on 2 cores are 1600 on 32; the store gives 10,000 images/s of 400 KB."""
    shown = lines("--images-per-s", "100", "--cores", "2", "--machine-cores", "32", "--store-gbit-per-s", "32")
    assert shown == [
        "machines images/s hours saturates first next",
        "1 1,600 17.4 CPU network of each machine, at 3,125",
        "2 3,200 8.7 CPU network of each machine, at 6,250",
        "4 6,400 4.3 CPU store, at 10,000",
        "8 10,000 2.8 store CPU, at 12,800",
    ]
    assert lines("--images-per-s", "100", "--cores", "2", "--hours", "10")[1].startswith("28 2,800 9.9 CPU")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpus", "1"], "--gpus takes --images-per-s-per-gpu"),
        (["--store-gbit-per-s", "1", "--hours", "2"], "the store alone takes longer"),
    ],
)
def test_the_command_refuses_what_cannot_be_computed(options: list[str], said: str) -> None:
    assert said in refused("bench", "scale", "--images-per-s", "100", "--cores", "2", *options)
