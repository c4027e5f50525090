"""Definitions that many tests take."""

from __future__ import annotations

from onestream.preprocess import Decode, Definition, Output
from onestream.preprocess.operations import Color, Operation


def in_levels(*geometry: Operation, color: Color = "rgb") -> Definition:
    """Pixels as 8-bit levels, channels last: what a viewer shows."""
    return Definition(operations=[Decode(color=color), *geometry, Output(layout="NHWC", dtype="uint8")])


AS_IT_IS = in_levels()
