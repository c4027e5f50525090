"""Turns whatever a server sent into a result or an error of ours, and bounds how much it may send."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager

from onestream.client import fields
from onestream.client.errors import OnestreamError, UnexpectedResponse

MAX_DOCUMENT_BYTES = 1 << 19
"""The largest answer, or part of one, that is no tensor: metadata, configurations, statistics, errors, and what an
inference says beside its tensors. 512 KiB: Triton's longest are statistics of a thousand batch sizes, about 150 KiB;
what is read into objects takes up to a hundred times as much memory, and this much of it half a second."""


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Read the answer of the server at ``url``: whatever that raises leaves the block as an OnestreamError.

    What is read is checked where it is read, with errors that say what was expected. This is for the rest: nobody knows
    every way in which an answer can be malformed, and callers are promised errors of one kind.
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
    if fields.text(value, "the id") not in ("", request_id):
        raise fields.wrong(value, "the id", f"that of the request, {request_id!r}")
