"""Reads values of an answer, and raises UnexpectedResponse for one that is not of the wire contract's kind.

``what`` names the value in the error, such as ``"the shape of output 'scores'"``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from onestream.client.errors import UnexpectedResponse

_LARGEST = 2**64 - 1
"""The largest value of the widest integers of Triton's protocol."""
_MOST_VALUES = 10_000
"""Of outputs, steps, versions or extensions: more than any model has, and read in a fraction of a second."""


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """``value``, names with their values."""
    if not isinstance(value, Mapping):
        raise wrong(value, what, "names with values")
    return value


def sequence(value: object, what: str) -> Sequence[Any]:
    """``value``, up to 10,000 values one after the other."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) > _MOST_VALUES:
        raise wrong(value, what, f"a list of at most {_MOST_VALUES}")
    return value


def text(value: object, what: str) -> str:
    """``value``, a string."""
    if not isinstance(value, str):
        raise wrong(value, what, "a string")
    return value


def whole(value: object, what: str) -> int:
    """``value``, a whole number from 0 to 2**64 - 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise wrong(value, what, "a whole number from 0 to 2**64 - 1")
    return value


def long(value: object, what: str) -> int:
    """As ``whole``; also its digits, as Protocol Buffers write long numbers in JSON."""
    is_digits = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(_LARGEST))
    return whole(int(str(value)) if is_digits else value, what)


def wrong(value: object, what: str, expected: str) -> UnexpectedResponse:
    """The error for a value of another kind, however large or deep it is."""
    return UnexpectedResponse(f"the server answered {reprlib.repr(value)} for {what}, expected {expected}")
