"""Reads what a server answered, whatever it is: a result, or an error of ours; and bounds how much it may be.

``what`` names the value in the error, such as ``"the shape of output 'scores'"``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onestream.client.errors import OnestreamError, UnexpectedResponse

MAX_DOCUMENT_BYTES = 1 << 19
"""The largest answer, or part of one, that is no tensor: metadata, configurations, statistics, errors, and what an
inference says beside its tensors. 512 KiB: Triton's longest are statistics of a thousand batch sizes, about 150 KiB;
what is read into objects takes up to a hundred times as much memory, and this much of it half a second."""

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


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Read the answer of the server at ``url``: whatever that raises leaves the block as an OnestreamError.

    What is read is checked where it is read, with errors that say what was expected. This is for the rest: not
    every malformed answer can be foreseen, and callers are promised errors of one kind.
    """
    try:
        yield
    except OnestreamError:
        raise
    except Exception as error:
        reason = reprlib.repr(str(error) or "no reason")
        raise UnexpectedResponse(f"{url} answered what cannot be read ({type(error).__name__}: {reason})") from None


def too_large(url: str, seen: str, *, allowed_bytes: int) -> UnexpectedResponse:
    """The error for an answer that is longer than this call can have; ``seen`` is a part of a sentence."""
    return UnexpectedResponse(f"{url} answered {seen}, allowed are at most {allowed_bytes} bytes for this call")


def require_id(value: object, request_id: str) -> None:
    """Raise UnexpectedResponse where an answer says that it belongs to another request."""
    if text(value, "the id") not in ("", request_id):
        raise wrong(value, "the id", f"that of the request, {request_id!r}")
