"""What code that shows only the network's input did otherwise, told from the values that it made."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.measure.parity.subject import Pixels
from onestream.preprocess import Definition
from onestream.preprocess.backends.base import Sample, network_layout

_CLEAR = 0.25
"""The part of a difference that may be left for a likeness to be named; another filter leaves some."""

_ORDERS = {"": 1, "channels in reverse order": -1}
_VALUES = {
    "pixels / 255 in place of the definition's mean, std and scale": (255, 0),
    "pixels from 0 to 255 in place of the definition's mean, std and scale": (1, 0),
    "pixels from -1 to 1 in place of the definition's mean, std and scale": (127.5, 1),
}


class Likeness:
    """Compares a subject's inputs with what usual mistakes would make of the reference's pixels."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._differences: dict[str, float] = {}

    def add(self, pixels: Pixels, made: Sample) -> None:
        """``pixels`` are the reference's, ``made`` is the subject's input of the same shape as the reference's."""
        for name, sample in self._samples(pixels).items():
            difference = float(np.abs(made.astype(np.float64) - sample).mean())
            self._differences[name] = self._differences.get(name, 0.0) + difference

    def text(self) -> str:
        """The mistake that explains most of the difference; empty where none does."""
        if not self._differences:
            return ""
        best = min(self._differences, key=lambda name: self._differences[name])
        return best if self._differences[best] < _CLEAR * self._differences[""] else ""

    def _samples(self, pixels: Pixels) -> dict[str, npt.NDArray[np.float64]]:
        found = {}
        for order, step in _ORDERS.items():
            if step == -1 and pixels.shape[2] == 1:
                continue
            ordered = np.ascontiguousarray(pixels[:, :, ::step])
            found[order] = network_layout(self._definition, ordered).astype(np.float64)
            if self._definition.normalize is None:
                continue
            moved = ordered.transpose(2, 0, 1) if self._definition.network_input.layout == "NCHW" else ordered
            for values, (scale, less) in _VALUES.items():
                name = f"{order}, and {values}" if order else values
                found[name] = moved.astype(np.float64) / scale - less
        return found
