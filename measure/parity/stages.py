"""The stages of a definition after which samples are compared."""

from __future__ import annotations

from collections.abc import Sequence

from onestream.measure.parity.report import Kind
from onestream.preprocess.definition import PreprocessingStage

_WHOLE: Sequence[PreprocessingStage] = ("decode", "resize", "crop", "normalize")
_REGIONS: Sequence[PreprocessingStage] = ("region", "resize", "crop", "normalize")


def stages_of(kind: Kind) -> Sequence[PreprocessingStage]:
    """The stages of what is compared, in order: a region is cut where a picture is decoded."""
    return _REGIONS if kind == "region" else _WHOLE
