"""Traces of requests: Triton's options for them, and a check of the collector that receives their spans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

_EXPORT_EVERY_MS = 1000
# An ensemble of three steps makes eight spans a request; what does not fit before an export is dropped.
_MOST_WAITING_SPANS = 16384
_COLLECTOR_TIMEOUT_S = 3.0
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Spans go to an OTLP/HTTP collector at ``url``, those of one request of ``rate``.

    Raises:
        ValueError: ``url`` is the address of no collector, or ``rate`` is below 1.
    """

    url: str
    rate: int = 1

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        # Triton takes the address in one argument, which a comma or a space would end.
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or not parts.path.strip("/")
            or re.search(r"[\s,]", self.url)
        ):
            raise ValueError(f"trace={self.url!r}, expected a collector such as http://127.0.0.1:4318/v1/traces")
        if self.rate < 1:
            raise ValueError(f"trace_rate={self.rate}, expected 1 or more: one of so many requests is traced")

    def arguments(self) -> tuple[str, ...]:
        """The options of tritonserver."""
        settings = (
            "mode=opentelemetry",
            "level=TIMESTAMPS",
            f"rate={self.rate}",
            f"opentelemetry,url={self.url}",
            "opentelemetry,resource=service.name=onestream",
            f"opentelemetry,bsp_schedule_delay={_EXPORT_EVERY_MS}",
            f"opentelemetry,bsp_max_queue_size={_MOST_WAITING_SPANS}",
        )
        return tuple(f"--trace-config={setting}" for setting in settings)

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The changes to Triton's environment by which no proxy gets spans that stay on this machine."""
        if not self._stays_here:
            return {}
        spared = given.get("no_proxy") or given.get("NO_PROXY")
        # Last: the curl in Triton 2.51 finds an IP address only there.
        value = ",".join(filter(None, [spared, urlsplit(self.url).hostname]))
        return {"no_proxy": value, "NO_PROXY": value}

    def complaint(self) -> str | None:
        """The problem of the collector, which is sent an empty export; None where it accepts that."""
        request = Request(self.url, b'{"resourceSpans":[]}', {"Content-Type": "application/json"})
        proxies = ProxyHandler({}) if self._stays_here else ProxyHandler()
        try:
            build_opener(proxies).open(request, timeout=_COLLECTOR_TIMEOUT_S).close()
        except HTTPError as error:
            return f"it answers {error.code}"
        except (OSError, HTTPException) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__
        return None

    @property
    def _stays_here(self) -> bool:
        return urlsplit(self.url).hostname in _THIS_MACHINE
