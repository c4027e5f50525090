"""The allowed difference of varied pixels of each GPU backend to the reference's, with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from onestream.preprocess.backends.base import BackendName, Sample

Varied = Literal["box", "gray box", "colours", "border", "plain", "jpeg"]


@dataclass(frozen=True, slots=True)
class VariedTolerance:
    """The allowed difference of varied pixels, uint8, of one backend to the reference's.

    ``what`` is compared, in words. ``max_level`` bounds all values, ``mean_level`` the mean.
    """

    backend: BackendName
    of: Varied
    max_level: float
    mean_level: float
    what: str
    reason: str

    @property
    def text(self) -> str:
        """The bounds in words."""
        if self.max_level == 0:
            return "equal in every bit"
        most = f"{self.max_level:g} level{'s' if self.max_level > 1 else ''} at most"
        return ", ".join(([most] if math.isfinite(self.max_level) else []) + [f"{self.mean_level:g} on average"])

    def allows(self, one: Sample, other: Sample) -> bool:
        """Whether the levels of two samples of one shape are within the bounds."""
        difference = np.abs(np.subtract(one, other, dtype=np.int16))
        return bool(difference.max() <= self.max_level and difference.mean() <= self.mean_level)


VARIED: tuple[VariedTolerance, ...] = (
    VariedTolerance(
        "cvcuda", "plain", 0, 0, "what is no JPEG",
        "the same whole numbers; sums in floating point are rounded after each operation, in the reference's order",
    ),
    VariedTolerance(
        "cvcuda", "jpeg", math.inf, 0.5, "photos as JPEG, of box and flips",
        "nvJPEG's inverse transform and colours round otherwise than libjpeg's",
    ),
    VariedTolerance(
        "dali", "box", 1, 0.5, "a box and flips of equal pixels in colour, without the outermost",
        "DALI keeps fractions between its two passes",
    ),
    VariedTolerance(
        "dali", "gray box", 2, 0.5, "the same in gray",
        "one level as in colour, and DALI rounds luma, which Pillow cuts",
    ),
    VariedTolerance(
        "dali", "border", 10, 1, "both with the outermost",
        "DALI repeats the border where Pillow renormalizes its filter",
    ),
    VariedTolerance(
        "dali", "colours", 4, 0.5, "such a box with a `linear_color` of 0.4 with a hue of 0.1",
        "the level of the resize times 1.4 twice, and what the hue adds",
    ),
    VariedTolerance(
        "dali", "jpeg", math.inf, 0.5, "photos as JPEG, of box and flips",
        "as cvcuda: the same decoder; the resize adds little",
    ),
)  # fmt: skip
"""What varies in training, on a GPU: on a CPU every bit is the reference's. Differences on an H100 were within them."""


def varied_tolerance(backend: BackendName, of: Varied) -> VariedTolerance:
    """The entry of the table. Raises ``KeyError`` where there is none."""
    for entry in VARIED:
        if (entry.backend, entry.of) == (backend, of):
            return entry
    raise KeyError(f"no tolerance of varied pixels for backend {backend!r} and {of!r}")
