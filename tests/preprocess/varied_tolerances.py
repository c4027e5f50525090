"""The allowed difference of varied pixels of each backend to the reference's, with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from onestream.preprocess.backends.base import BackendName, Device, Sample

Varied = Literal["transform", "box", "gray box", "changes", "colours", "thresholds", "border", "plain", "jpeg"]


@dataclass(frozen=True, slots=True)
class VariedTolerance:
    """The allowed difference of varied pixels, uint8, of one backend to the reference's.

    ``what`` is compared, in words. ``max_level`` bounds all values but the share ``share_above`` of them, 0 to 1, and
    ``mean_level`` the mean. ``measured`` as of ``Tolerance``.
    """

    backend: BackendName
    of: Varied
    max_level: float
    mean_level: float
    what: str
    reason: str
    share_above: float = 0.0
    device: Device = "cpu"
    measured: bool = True

    @property
    def text(self) -> str:
        """The bounds in words."""
        if self.max_level == 0:
            return "equal in every bit"
        most = f"{self.max_level:g} level{'s' if self.max_level > 1 else ''} at most"
        most += f" but in {self.share_above:.0%} of the values" if self.share_above else ""
        return ", ".join(([most] if math.isfinite(self.max_level) else []) + [f"{self.mean_level:g} on average"])

    def allows(self, one: Sample, other: Sample) -> bool:
        """Whether the levels of two samples of one shape are within the bounds."""
        difference = np.abs(np.subtract(one, other, dtype=np.int16))
        return float((difference > self.max_level).mean()) <= self.share_above and difference.mean() <= self.mean_level


VARIED: tuple[VariedTolerance, ...] = (
    VariedTolerance(
        "dali", "transform", 0, 0, "a transform that is no box, warped or not",
        "the same whole numbers, and Pillow's own arithmetic where it shrinks",
    ),
    VariedTolerance("dali", "box", 1, 0.5, "a box, with *bilinear*", "as the definition's resize"),
    VariedTolerance(
        "dali",
        "changes",
        0,
        0,
        "a change of levels, or a mixture, of equal pixels",
        "the same arithmetic, by Pillow or by compiled loops",
    ),
    VariedTolerance(
        "dali", "colours", 4, 0.2, "a box, and brightness, contrast and saturation of up to 1.4, with a turn of hue",
        "the level of the resize times 1.4 twice, and what the hue adds, which is rounded again",
    ),
    VariedTolerance(
        "dali", "thresholds", 4, 0.5, "a box, and *posterize*, *solarize* or *equalize*, too",
        "a level beside a threshold may end on its other side, which is a whole step",
        share_above=0.01,
    ),
    VariedTolerance(
        "cvcuda", "plain", 0, 0, "what is no JPEG",
        "the same whole numbers; sums in floating point are rounded after each operation, in the reference's order",
        device="gpu", measured=False,
    ),
    VariedTolerance(
        "cvcuda", "jpeg", math.inf, 0.5, "photos as JPEG, of box and flips",
        "nvJPEG's inverse transform and colours round otherwise than libjpeg's",
        device="gpu", measured=False,
    ),
    VariedTolerance(
        "dali", "box", 1, 0.5, "a box and flips of equal pixels in colour, without the outermost",
        "DALI keeps fractions between its two passes",
        device="gpu", measured=False,
    ),
    VariedTolerance(
        "dali", "gray box", 2, 0.5, "the same in gray",
        "one level as in colour, and DALI rounds luma, which Pillow cuts",
        device="gpu", measured=False,
    ),
    VariedTolerance(
        "dali", "border", 10, 1, "both with the outermost",
        "DALI repeats the border where Pillow renormalizes its filter",
        device="gpu", measured=False,
    ),
    VariedTolerance(
        "dali", "colours", 4, 0.5, "such a box with a `linear_color` of 0.4 with a hue of 0.1",
        "the level of the resize times 1.4 twice, and what the hue adds", device="gpu", measured=False,
    ),
    VariedTolerance(
        "dali", "jpeg", math.inf, 0.5, "photos as JPEG, of box and flips",
        "as cvcuda: the same decoder; the resize adds little", device="gpu", measured=False,
    ),
)  # fmt: skip
"""What varies in training. On a GPU nothing was measured: kernels ran by a C++ compiler, DALI's graph on a CPU."""


def varied_tolerance(backend: BackendName, of: Varied, device: Device = "cpu") -> VariedTolerance:
    """The entry of the table. Raises ``KeyError`` where there is none."""
    for entry in VARIED:
        if (entry.backend, entry.of, entry.device) == (backend, of, device):
            return entry
    raise KeyError(f"no tolerance of varied pixels for backend {backend!r} on {device!r} and {of!r}")
