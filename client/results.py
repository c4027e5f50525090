"""The outcome for one image of many, and who answers at an address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from onestream.client.errors import OnestreamError
from onestream.client.kinds.base import ResultT


@dataclass(frozen=True, slots=True)
class Item(Generic[ResultT]):
    """The outcome for one image of many: exactly one of ``result`` and ``error`` is set.

    ``index`` counts the images from 0, ``source`` is the object that was given.
    """

    index: int
    source: object
    result: ResultT | None = None
    error: OnestreamError | None = None

    def __post_init__(self) -> None:
        if (self.result is None) == (self.error is None):
            raise ValueError("an Item holds either a result or an error, exactly one of them")

    def unwrap(self) -> ResultT:
        """The result, or the error raised."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers at an address: ``name`` and ``version`` are the server's own words."""

    url: str
    name: str
    version: str
    extensions: tuple[str, ...]
