"""Makes the error that the caller sees of a server's status and message, for both protocols alike."""

from __future__ import annotations

import re

from onestream.client.errors import (
    BadImage,
    CannotConnect,
    InvalidRequest,
    ModelNotFound,
    OnestreamError,
    ServerFailed,
    ServerOverloaded,
    ServerRefused,
    ServerUnavailable,
    SharedMemoryUnavailable,
)
from onestream.wire.refusals import MAY_BE_SENT_AGAIN, QUEUE_IS_FULL, WAITED_TOO_LONG, find_bad_image

_TRACE = re.compile(r"\s*\bAt:\s*\n.*|\s*Traceback \(most recent call last\).*", re.DOTALL)
_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/'\",;:()\[\]]+/)+[^\s'\",;:()\[\]]*(?:\(\d+\))?")
_QUEUE = re.compile(f"{QUEUE_IS_FULL}|{WAITED_TOO_LONG}", re.IGNORECASE)
_BETWEEN_VERSIONS = re.compile(
    r"is not healthy|has no available versions|is not ready|being unloaded|server is stopping", re.IGNORECASE
)
_RESTRICTED = re.compile(r"(?:protocol|api) is restricted", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(r"request for unknown model", re.IGNORECASE)
_UNKNOWN_REGION = re.compile(r"unable to find (?:system )?shared memory region", re.IGNORECASE)
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED\W+(?:certificate verify failed: )?([^:(]+)")
"""As OpenSSL and BoringSSL say it, with the reason."""
_LONGEST_MESSAGE = 500
_MOST_READ = 8 * _LONGEST_MESSAGE
"""Characters of a message that are searched for traces and paths; the search may look at one more than once."""


class RegionForgotten(SharedMemoryUnavailable):
    """The server does not know a region that was registered: it was restarted since. Register it again."""


class ClosedToCallers(ServerRefused):
    """The server does not allow this to callers."""


def readable(message: str) -> str:
    """The server's message without stack traces, server paths and control characters, cut to a bounded length."""
    text = _PATH.sub("<server path>", _TRACE.sub("", message[:_MOST_READ])).strip()
    text = "".join(sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}" for sign in text)
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + " …"
    return text or "no reason given"


def unreachable(url: str, seen: str, *, expected: str, authorities: str) -> CannotConnect:
    """Nothing answered as expected; or its certificate is not trusted, of which ``authorities`` names what to set."""
    untrusted = _UNTRUSTED.search(seen)
    if untrusted is None:
        return CannotConnect(f"cannot reach {url}: {seen}; expected {expected}")
    return CannotConnect(
        f"cannot reach {url}: its certificate is not trusted ({untrusted[1].strip(' .')}); one of your own is trusted "
        f"where {authorities} names the file of its authority, or its own file where it is self-signed"
    )


def refusal(status: str, message: str, *, model: str | None, url: str) -> OnestreamError:
    """The error for a server's answer.

    ``status`` is a gRPC code name such as ``"INVALID_ARGUMENT"``; ``model`` is None for calls about the server.
    """
    text = readable(message)
    if (bad_image := find_bad_image(text)) is not None:
        return BadImage(*bad_image)
    subject = f"model {model!r} at {url}" if model else f"the server at {url}"
    if _UNKNOWN_REGION.search(text):
        return RegionForgotten(f"{subject}: {text}")
    kind, advice = _kind(status, text)
    return kind(f"{subject} refused ({status}): {text}{advice}", status=status)


def _kind(status: str, text: str) -> tuple[type[ServerRefused], str]:
    if status == "RESOURCE_EXHAUSTED" or _QUEUE.search(text):
        return ServerOverloaded, "; send fewer images at once, or later"
    if _RESTRICTED.search(text):
        return ClosedToCallers, "; the server does not allow this to callers"
    if MAY_BE_SENT_AGAIN in text:
        return ServerUnavailable, ""
    if status == "UNAVAILABLE" or _BETWEEN_VERSIONS.search(text):
        return ServerUnavailable, "; it is starting, stopping or being restarted"
    # Triton gives this no status of its own in a conversation.
    if status == "NOT_FOUND" or _UNKNOWN_MODEL.search(text):
        return ModelNotFound, "; expected the name of a served model"
    if status == "UNAUTHENTICATED":
        return ServerRefused, "; expected a token that it knows (token=…, or ONESTREAM_TOKEN for the commands)"
    if status == "INVALID_ARGUMENT":
        return InvalidRequest, ""
    if status in ("INTERNAL", "UNKNOWN", "DATA_LOSS"):
        return ServerFailed, ""
    return ServerRefused, ""
