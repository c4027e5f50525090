"""What commands show of a pipeline's answer, whatever its kind."""

from __future__ import annotations

from onestream.client import Result
from onestream.client.kinds.base import Line


def lines(result: Result, top: int) -> list[Line]:
    """The lines of an answer, at least one: its ``top`` best classes, all regions, masks or tensors."""
    return result.best(top).summary() or [Line(result.nothing)]
