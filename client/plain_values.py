"""What arrays of an answer become in JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def plain(array: npt.NDArray[Any]) -> Any:
    """The values of an array in lists: bytes are read as UTF-8, and what is no finite number is None."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        values = array.astype(object)
        values[~np.isfinite(array)] = None
        return values.tolist()
    if array.dtype != object:
        return array.tolist()
    return _readable(array.tolist())


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(one) for one in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value
