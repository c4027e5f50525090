"""The result of one image, and its line of JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from onestream.cli.messages import without_name
from onestream.client import BadImage, OnestreamError, Result, UnexpectedResponse
from onestream.client.kinds import RESULTS
from onestream.client.kinds.base import without_request

_KIND = "kind of result"
"""Field of a line of a journal; no tensor is called so."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of an image, or ``error`` and ``reason``.

    ``path`` and ``key`` are as of its Sample. Of ``result`` only what was found and ``latency_ms`` are kept.
    """

    path: str
    key: str
    result: Result | None = None
    error: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, path: str, key: str, said: Result | OnestreamError, top: int) -> Row:
        """The row of an image, whatever became of it."""
        return (
            cls.of_error(path, key, said) if isinstance(said, OnestreamError) else cls.of_result(path, key, said, top)
        )

    @classmethod
    def of_result(cls, path: str, key: str, result: Result, top: int) -> Row:
        """The row of an image that went well, with its ``top`` best classes, all objects or all text."""
        return cls(path, key, without_request(result.best(top), round(result.latency_ms, 3)))

    @classmethod
    def of_error(cls, path: str, key: str, error: OnestreamError) -> Row:
        """The row of an image that failed; ``error`` is the code of a bad image, else the kind, as ``timed_out``."""
        if isinstance(error, BadImage):
            return cls(path, key, error=error.code, reason=error.reason)
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
        return cls(path, key, error=kind, reason=without_name(error))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; nothing is named that is not there."""
        fields: dict[str, Any] = {"path": self.path} | ({"key": self.key} if self.key else {})
        if self.result is None:
            return fields | {"error": self.error, "reason": self.reason}
        return fields | self.result.values() | {"latency_ms": self.result.latency_ms}

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps(self.to_dict())

    def to_journal(self) -> str:
        """The line with the result's kind, from which ``from_journal`` makes the row again."""
        return json.dumps({**self.to_dict(), _KIND: None if self.result is None else self.result.kind})

    @classmethod
    def from_journal(cls, line: str | bytes) -> Row:
        """The row in a line. Raises ValueError where it holds none."""
        try:
            fields = json.loads(line)
            path, key, kind = fields.pop("path"), fields.pop("key", ""), fields.pop(_KIND)
            if "error" in fields:
                return cls(path, key, error=fields["error"], reason=fields["reason"])
            return cls(path, key, RESULTS[kind].from_dict(fields))
        except (TypeError, AttributeError, LookupError, UnexpectedResponse) as error:
            raise ValueError(f"{line[:80]!r} is no row: {error}") from None
