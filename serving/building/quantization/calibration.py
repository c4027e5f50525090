"""What a network in int8 is calibrated with, and what it must reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onestream.serving.errors import BadPipeline

MIN_AGREEMENT = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Pictures, and the least agreement with float32.

    Args:
        pictures: image files like those that will be served.
        labels: a CSV file of their classes, with which accuracy takes the place of agreement.
        min_agreement: the least share of the confident predictions that stay as in float32; of a labelled set, of
            float32's accuracy. From 0 to 1.

    Raises ``BadPipeline`` for another ``min_agreement``.
    """

    pictures: Sequence[Path]
    labels: Path | None = None
    min_agreement: float = MIN_AGREEMENT

    def __post_init__(self) -> None:
        if not 0 <= self.min_agreement <= 1:
            raise BadPipeline(f"min_agreement is a share from 0 to 1, got {self.min_agreement:g}")
