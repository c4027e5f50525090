"""The regions that a cascade tells: the server's half of the kinds *regions* and *reading*.

They have no options: their stages end in kinds of their own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy.typing as npt

from onestream.preprocess.geometry import Quads, quads_of
from onestream.preprocess.quads import turned
from onestream.wire.tensor_names import BOXES, DEGREES, QUADS

_QUARTER = 90


def place_of(names: Container[str]) -> str:
    """The tensor that says where regions are, of those that a stage gives."""
    return BOXES if BOXES in names else QUADS


def corners_of(tensors: Mapping[str, npt.NDArray[Any]]) -> Quads:
    """The corners (n, 4, 2) of the regions that a stage found, from its tensors without the batch."""
    return tensors[QUADS] if place_of(tensors) == QUADS else quads_of(tensors[BOXES])


def turned_by(tensors: Mapping[str, npt.NDArray[Any]], quads: Quads) -> Quads:
    """The corners of regions as a stage turns them, whose tensors have a row for each; most turn none."""
    return turned(quads, tensors[DEGREES] // _QUARTER) if DEGREES in tensors else quads
