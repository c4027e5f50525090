"""The allowed difference of another decoder's RGB to ours, in 8-bit levels, with its reason. Tests judge by it.

The YUV samples are equal: H.264, HEVC, AV1, VP8, VP9 and MPEG-4 define them bit by bit. Differences come from the
conversion to RGB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Other = Literal["swscale-444", "swscale-subsampled", "swscale-10-bit", "dali-cpu", "dali-gpu", "nvdec"]


@dataclass(frozen=True, slots=True)
class ColorTolerance:
    """Bounds on every value and on the mean of the absolute differences."""

    other: Other
    max_level: float
    mean_level: float
    reason: str

    @property
    def text(self) -> str:
        """The bounds in words that follow *allowed*."""
        return f"for 8-bit files are {self.max_level:g} at most, {self.mean_level:g} on average"

    def allows(self, *, highest: float, mean: float, different: float, above_one: float) -> bool:  # noqa: ARG002
        """Whether a largest and a mean difference in levels are within the bounds; shares are not bounded."""
        return highest <= self.max_level and mean <= self.mean_level


TOLERANCES = (
    ColorTolerance(
        "swscale-444", 1, 0.01,
        "the same matrix on the same samples; swscale's factors are shorter, which now and then rounds the other way",
    ),
    ColorTolerance(
        "swscale-subsampled", 3, 1.3,
        "8-bit 4:2:0 and 4:2:2 by swscale's default flags, as PyAV, OpenCV and decord use it: chroma not interpolated, "
        "as ours, but sums in 16 bits that are cut and not rounded, for which its pictures are about one level darker",
    ),
    ColorTolerance(
        "swscale-10-bit", 16, 1.6,
        "photos of 10-bit 4:2:0: swscale interpolates chroma there, which shows at edges of colour",
    ),
    ColorTolerance(
        "dali-cpu", 16, 0.6,
        "photos: DALI lets swscale interpolate chroma between pixels, and we do not, which shows at edges of colour",
    ),
    ColorTolerance(
        "dali-gpu", 16, 2.0,
        "photos: NVDEC gives the same YUV, and DALI's kernel interpolates chroma too. Not measured: it has not run "
        "on a GPU yet",
    ),
    ColorTolerance(
        "nvdec", 0, 0,
        "every decoder must begin with FFmpeg's samples in every bit, the kernel does our sums, and the resize of both "
        "is Pillow's in every bit",
    ),
)  # fmt: skip
"""Measured on photos and noise (swscale) and on photos (DALI), and rounded up."""


def tolerance(other: Other) -> ColorTolerance:
    """The entry of the table."""
    return next(entry for entry in TOLERANCES if entry.other == other)
