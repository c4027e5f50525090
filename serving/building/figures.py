"""Figures of a comparison with the reference, of one stage over several images."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from onestream.preprocess.tolerances import Comparison

_DIGITS = 6


class Figures(BaseModel):
    """The difference of images to the reference after one stage, in 8-bit levels; shares are from 0 to 1.

    ``mean`` is the mean over the images, every other figure that of the worst image. ``within`` says whether the
    tolerances table allows every image.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max: float
    mean: float
    percentile_99_9: float
    share_different: float
    share_above_one: float
    within: bool

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> Figures:
        """Sum up the comparisons of at least one image, rounded to six digits after the point."""
        return cls(
            max=round(max(one.max for one in comparisons), _DIGITS),
            mean=round(sum(one.mean for one in comparisons) / len(comparisons), _DIGITS),
            percentile_99_9=round(max(one.percentile_99_9 for one in comparisons), _DIGITS),
            share_different=round(max(one.share_different for one in comparisons), _DIGITS),
            share_above_one=round(max(one.share_above_one for one in comparisons), _DIGITS),
            within=all(one.within for one in comparisons),
        )
