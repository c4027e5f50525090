"""How a server says no: codes for programs, and the texts by which a client knows what happened."""

from __future__ import annotations

import re
from typing import Literal

ImageRefusal = Literal["empty", "too_large", "unsupported_format", "too_many_pixels", "corrupt", "bad_request"]
"""Why an image is refused, for programs; docs/wire-contract.md has the meanings."""

StreamRefusal = Literal[
    "bad_message",
    "unsupported_codec",
    "too_large",
    "too_fast",
    "too_many_streams",
    "flow",
    "idle",
    "failed",
    "bad_parameter",
]
"""Why a video stream is refused or ended by the server, for programs."""

LONGEST_REASON = 200
"""Characters of a reason: two lines in a log. What a file or a caller says may be quoted in it, however long it is."""

MAY_BE_SENT_AGAIN = "; it may be sent again"
"""The end of a refusal that is no fault of the request: the server has no room for it now."""

QUEUE_IS_FULL = "Exceeds maximum queue size"
"""Triton's words for a request that its queue has no place for."""

WAITED_TOO_LONG = "Request timeout expired"
"""Triton's words for a request that waited in a queue for longer than it may."""

QUEUE_FULL = (QUEUE_IS_FULL, WAITED_TOO_LONG)
"""What Triton 2.51 says to a caller inside the server of a queue without room: its code is INTERNAL there."""

_BAD_IMAGE = re.compile(r"bad image \((?P<code>\w+)\): (?P<reason>.*)", re.DOTALL)


def shortened(reason: str) -> str:
    """A reason, cut to at most ``LONGEST_REASON`` characters."""
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 2] + " …"


def bad_image(code: str, reason: str) -> str:
    """The text of an image's refusal, which ``find_bad_image`` reads."""
    return f"bad image ({code}): {reason}"


def bad_parameter(reason: str) -> str:
    """The text of the refusal of a request's parameter, which carries the status INVALID_ARGUMENT."""
    return f"bad parameter {reason}"


def bad_input(reason: str) -> str:
    """The text of the refusal of a network's input beside the image, which carries the status INVALID_ARGUMENT."""
    return f"bad input {reason}"


def too_many_values(count: int, most: int) -> str:
    """Why an input of a request is refused, by the client and the server alike."""
    return f"{count} values; at most {most} are allowed (limits.max_input_values of the pipeline)"


def find_bad_image(text: str) -> tuple[str, str] | None:
    """Code and reason of the image's refusal in a text, perhaps after a prefix of Triton's; None where there is none.

    A newer server may send codes that are no ``ImageRefusal``.
    """
    found = _BAD_IMAGE.search(text)
    return None if found is None else (found["code"], found["reason"].strip())


SAID_ONCE = "(said once)"
"""Ends every line of a model's log on what a definition passes over in pictures, which ``onestream serve`` shows."""


def bad_stream(code: str, reason: str) -> str:
    """The text of a video stream's refusal."""
    return f"bad stream ({code}): {reason}"
