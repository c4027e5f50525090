"""``onestream bench scale``: machines and hours for very many images, computed from measured figures."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from onestream.cli.exit_codes import EXIT_CANNOT_START, fail
from onestream.cli.messages import table_console
from onestream.measure.scale_out import Costs, estimate, machines_for

_MOST_SHOWN = 128


def scale(
    images_per_s: Annotated[
        float, typer.Option(min=0.001, help="What one machine does, as `onestream bulk --ray` says at its end.")
    ],
    cores: Annotated[int, typer.Option(min=1, help="Cores of the machine on which that was measured.")],
    *,
    images: Annotated[int, typer.Option(min=1, help="How many there are.")] = 100_000_000,
    image_kb: Annotated[float, typer.Option(min=0.001, help="Thousands of bytes of an image, in the mean.")] = 400,
    machine_cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of each machine of the cluster.  [default: --cores]")
    ] = None,
    link_gbit_per_s: Annotated[float, typer.Option(min=0.001, help="The network of each machine.")] = 10,
    store_gbit_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="What the store gives to all machines.  [default: no bound]")
    ] = None,
    gpus: Annotated[
        int,
        typer.Option(min=0, help="GPUs of each machine, which run the network; --images-per-s is then of decoding."),
    ] = 0,
    images_per_s_per_gpu: Annotated[
        float | None, typer.Option(min=0.001, help="What the network does on one GPU.")
    ] = None,
    hours: Annotated[
        list[float] | None, typer.Option(min=0.001, help="The machines that take so long; may be repeated.")
    ] = None,
) -> None:
    """Print machines and hours for very many images, and what saturates first, from figures that were measured.

    Nothing is measured here. Rates of cores, GPUs and machines are added up; every image crosses a network once.
    Exits with 2 where a figure is missing, or where the store alone takes longer than all --hours.
    """
    if gpus and images_per_s_per_gpu is None:
        fail("--gpus takes --images-per-s-per-gpu, measured on such a GPU", EXIT_CANNOT_START)
    costs = Costs(
        image_bytes=image_kb * 1000,
        cores=machine_cores or cores,
        images_per_s_per_core=images_per_s / cores,
        link_bits_per_s=link_gbit_per_s * 1e9,
        store_bits_per_s=None if store_gbit_per_s is None else store_gbit_per_s * 1e9,
        gpus=gpus,
        images_per_s_per_gpu=images_per_s_per_gpu,
    )
    counts = _machine_counts(costs, images, hours)
    if not counts:
        fail("the store alone takes longer than that: nothing but a faster one helps", EXIT_CANNOT_START)
    table = Table("machines", "images/s", "hours", "saturates first", "next", box=None)
    for count in counts:
        found = estimate(costs, count)
        first, then = found.bounds[:2]
        table.add_row(
            f"{count:,}",
            f"{found.images_per_s:,.0f}",
            f"{found.hours(images):,.1f}",
            first.name,
            f"{then.name}, at {then.images_per_s:,.0f}",
        )
    table_console().print(table)


def _machine_counts(costs: Costs, images: int, hours: list[float] | None) -> list[int]:
    """The machines that were asked for, or powers of two up to where more of them change nothing."""
    if hours:
        return sorted({count for asked in hours if (count := machines_for(costs, images, asked)) is not None})
    counts = [1]
    while counts[-1] < _MOST_SHOWN and estimate(costs, counts[-1]).bounds[0].name != "store":
        counts.append(2 * counts[-1])
    return counts
