"""Reads a server's metrics, and counts what changed between two readings."""

from __future__ import annotations

import http.client
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from onestream.cli.options import names_this_machine

TIMEOUT_S = 5.0

Series = tuple[str, frozenset[tuple[str, str]]]
"""A metric's name, without the ``_total`` of a counter, and its labels."""


class NoMetrics(Exception):
    """There are no metrics to read: no server, no answer, or an answer that is something else."""


@dataclass(frozen=True)
class Reading:
    """All counters and gauges at one moment, ``at_s`` on the monotonic clock."""

    at_s: float
    counters: Mapping[Series, float] = field(default_factory=dict)
    gauges: Mapping[Series, float] = field(default_factory=dict)


def read(url: str) -> Reading:
    """Ask a server for its metrics, one on this machine without the proxy that the environment may name.

    Raises:
        NoMetrics: with the reason, in one line.
    """
    proxies: dict[str, str] | None = {} if names_this_machine(urlsplit(url).hostname or "") else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        raise NoMetrics(f"{url} answers {error.code} {error.reason}; Triton's metrics are at …:8002/metrics") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NoMetrics(
            f"no metrics from {url}: {getattr(reason, 'strerror', None) or reason or 'no answer'}"
        ) from error
    try:
        return parse(text, at_s=time.monotonic())
    except ValueError as error:
        raise NoMetrics(f"what {url} answers are no metrics: {error}") from error


def parse(text: str, *, at_s: float) -> Reading:
    """Read Prometheus' text format.

    Raises:
        ValueError: a line is not of that format.
    """
    counters: dict[Series, float] = {}
    gauges: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        kept = {"counter": counters, "gauge": gauges}.get(family.type)
        if kept is not None:
            for one in family.samples:
                if math.isfinite(one.value):
                    kept[family.name, frozenset(one.labels.items())] = one.value
    return Reading(at_s=at_s, counters=counters, gauges=gauges)


def counted(before: Reading, after: Reading) -> dict[Series, float]:
    """The growth of each counter of ``after``, never less than 0.

    A counter that is new, or smaller than it was, began at 0 in between: what it shows is what was counted.
    """
    grown = {}
    for series, value in after.counters.items():
        earlier = before.counters.get(series, 0.0)
        grown[series] = value - earlier if value >= earlier else value
    return grown
