"""The stages of a definition after which samples are compared."""

from __future__ import annotations

from collections.abc import Sequence

from onestream.measure.parity.report import Kind
from onestream.preprocess.tolerances import Stage

_WHOLE: Sequence[Stage] = ("decode", "resize", "crop", "normalize")
_REGIONS: Sequence[Stage] = ("region", "resize", "crop", "normalize")


def stages_of(kind: Kind) -> Sequence[Stage]:
    """The stages of what is compared, in order: a region is cut where a picture is decoded."""
    return _REGIONS if kind == "region" else _WHOLE
