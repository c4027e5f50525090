"""Definitions that many tests take."""

from __future__ import annotations

from typing import Any

from onestream.preprocess import Decode, Definition, Normalize, Output
from onestream.preprocess.operations import Operation

IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
LEVELS = Output(layout="NHWC", dtype="uint8")


def chain(*operations: Operation, **decode: Any) -> Definition:
    return Definition(operations=[Decode(**decode), *operations])


def in_levels(*geometry: Operation, **decode: Any) -> Definition:
    """Pixels as 8-bit levels, channels last: what a viewer shows."""
    return chain(*geometry, LEVELS, **decode)


AS_IT_IS = in_levels()
