"""Samples of two backends, or of two batches, one by one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from onestream.preprocess import BadImage
from onestream.preprocess.backends.base import Sample


def assert_same(seen: Iterable[Sample | BadImage], expected: Iterable[Sample | BadImage]) -> None:
    """Equal in every bit, and bad for the same reason."""
    for one, other in zip(seen, expected, strict=True):
        if isinstance(one, BadImage) or isinstance(other, BadImage):
            assert getattr(one, "code", one) == getattr(other, "code", other)
        else:
            np.testing.assert_array_equal(one, other, strict=True)
