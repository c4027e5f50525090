"""How many machines, and for how long, many images take: arithmetic over figures that were measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

_BITS = 8
_STORE = "store"
"""The bound that is the same for any number of machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What was measured, and what the machines are.

    ``images_per_s_per_core`` is of all steps together, and with GPUs, which run the network, of decoding and resizing.
    ``images_per_s_per_gpu`` is of the network alone.
    Rates of links and of the store are in bit/s; None for no bound.
    """

    image_bytes: float
    cores: int
    images_per_s_per_core: float
    link_bits_per_s: float
    store_bits_per_s: float | None = None
    gpus: int = 0
    images_per_s_per_gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """What keeps some machines from more: a name, and the images/s that it allows all of them together."""

    name: str
    images_per_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What ``machines`` do: ``bounds`` have the tightest first."""

    machines: int
    bounds: tuple[Bound, ...]

    @property
    def images_per_s(self) -> float:
        """Of all machines together."""
        return self.bounds[0].images_per_s

    def hours(self, images: int) -> float:
        """For so many images."""
        return images / self.images_per_s / 3600


def estimate(costs: Costs, machines: int) -> Estimate:
    """What bounds so many machines. Each image crosses a machine's link once; rows are too small to count."""
    cpu = "decoding" if costs.gpus else "CPU"
    bounds = [
        Bound(cpu, machines * costs.cores * costs.images_per_s_per_core),
        Bound("network of each machine", machines * costs.link_bits_per_s / _BITS / costs.image_bytes),
    ]
    if costs.store_bits_per_s is not None:
        bounds.append(Bound(_STORE, costs.store_bits_per_s / _BITS / costs.image_bytes))
    if costs.gpus and costs.images_per_s_per_gpu is not None:
        bounds.append(Bound("GPU", machines * costs.gpus * costs.images_per_s_per_gpu))
    return Estimate(machines, tuple(sorted(bounds, key=lambda bound: bound.images_per_s)))


def machines_for(costs: Costs, images: int, hours: float) -> int | None:
    """The fewest machines that are done in so many hours; None where the store alone takes longer."""
    needed = images / (hours * 3600)
    bounds = {one.name: one.images_per_s for one in estimate(costs, 1).bounds}
    if bounds.pop(_STORE, math.inf) < needed:
        return None
    return max(1, math.ceil(needed / min(bounds.values())))
