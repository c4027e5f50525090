"""Runs Triton's perf_analyzer and reads the CSV file that it exports."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from onestream.wire.tensor_names import IMAGE

Transport = Literal["grpc", "http", "grpc+shm"]
VARIABLE = "PERF_ANALYZER"

_WINDOWS = 3
_WINDOW_STRETCH = 1.2  # perf_analyzer measures this much longer than the interval that it is given
_WARMUP_REQUESTS = 16
_OUTPUT_REGION_BYTES = 4096
_GRACE_S = 60.0
_PERCENTILES = (50, 90, 95, 99)


class PerfAnalyzerError(Exception):
    """perf_analyzer is missing, failed, or exported something unexpected."""


class Load(BaseModel):
    """What clients do: ``concurrency`` keeps so many requests in flight, ``rate`` sends so many a second, whether
    the earlier ones were answered or not (Poisson arrivals).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["concurrency", "rate"]
    value: int

    def __str__(self) -> str:
        return f"concurrency {self.value}" if self.kind == "concurrency" else f"{self.value} requests/s"


class Export(BaseModel):
    """What perf_analyzer measured. Latencies are a client's, in milliseconds; ``inferences_per_s`` counts answers.

    ``server_ms`` is a request's mean time in the server by part: *queue*, *compute input*, *compute infer* and
    *compute output*; of an ensemble, the sums over its steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inferences_per_s: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    server_ms: dict[str, float]


def find_perf_analyzer() -> list[str]:
    """The command: ``$PERF_ANALYZER``, else ``perf_analyzer`` on PATH.

    Raises ``PerfAnalyzerError`` saying how to get it.
    """
    named = os.environ.get(VARIABLE)
    if named:
        command = shlex.split(named)
        if shutil.which(command[0]) is None:
            raise PerfAnalyzerError(f"${VARIABLE} names {command[0]!r}, which is not an executable file")
        return command
    found = shutil.which("perf_analyzer")
    if found is None:
        raise PerfAnalyzerError(
            "perf_analyzer is not on PATH. With glibc 2.38 or newer (Debian 13, Ubuntu 24.04): pip install "
            f"perf-analyzer. Elsewhere, name any command that runs it: {VARIABLE}=/path/to/perf_analyzer"
        )
    return [found]


def version(command: list[str]) -> str:
    """What perf_analyzer says about itself, such as ``0.0.0 (commit 3a49a23)``; *unknown* where it says nothing."""
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=_GRACE_S, check=False)
    return (said.stdout + said.stderr).strip().rpartition("Version ")[2] or "unknown"


def input_data(contents: Sequence[bytes]) -> str:
    """The text of an input file: every image is one request for the input ``image``, taken in turn."""
    data = [{IMAGE: {"content": {"b64": b64encode(c).decode()}, "shape": [len(c)]}} for c in contents]
    return json.dumps({"data": data})


def measure(
    command: list[str],
    *,
    model: str,
    address: str,
    transport: Transport,
    load: Load,
    photos: Path,
    duration_s: float,
) -> Export:
    """Put a load on a served model for about ``duration_s`` seconds.

    ``address`` is ``host:port`` of the transport's service, ``photos`` an input file of perf_analyzer. Raises
    ``PerfAnalyzerError`` with what perf_analyzer said, also where a request failed.
    """
    with tempfile.TemporaryDirectory(prefix="perf-analyzer-") as folder:
        export = Path(folder) / "export.csv"
        full = [
            *command,
            *("-m", model, "-u", address, "-i", "http" if transport == "http" else "grpc"),
            *("--input-data", str(photos), f"--{_OPTIONS[load.kind]}", str(load.value)),
            # A fixed number of windows: "stable" at any deviation, since the spread is reported over rounds instead.
            *("--measurement-interval", str(round(duration_s / _WINDOWS / _WINDOW_STRETCH * 1000))),
            *("--stability-percentage", "999", "--max-trials", str(_WINDOWS)),
            *("--warmup-request-count", str(_WARMUP_REQUESTS)),
            *("-f", str(export), "--verbose-csv"),
        ]
        if load.kind == "rate":
            # Asynchronous, since a synchronous client waits for answers and is then no open loop.
            full += ["--request-distribution", "poisson", "--async"]
        if transport == "grpc+shm":
            full += ["--shared-memory", "system", "--output-shared-memory-size", str(_OUTPUT_REGION_BYTES)]
        try:
            done = subprocess.run(full, capture_output=True, text=True, timeout=duration_s + _GRACE_S, check=False)
        except subprocess.TimeoutExpired:
            raise PerfAnalyzerError(
                f"{model}, {load}: perf_analyzer did not end in {duration_s + _GRACE_S} s"
            ) from None
        if done.returncode != 0 or not export.exists():
            said = done.stderr.strip() or done.stdout.strip().splitlines()[-1:] or "nothing"
            raise PerfAnalyzerError(f"{model}, {load}: perf_analyzer ended with {done.returncode} and said: {said}")
        return read_export(export.read_text())


_OPTIONS = {"concurrency": "concurrency-range", "rate": "request-rate-range"}


def read_export(text: str) -> Export:
    """Read the CSV text of one measurement. Raises ``PerfAnalyzerError`` naming the column that is missing."""
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != 1:
        raise PerfAnalyzerError(f"expected one measurement in perf_analyzer's CSV file, got {len(rows)}")
    row = rows[0]

    def milliseconds(column: str) -> float:
        return float(row[column]) / 1000

    try:
        return Export(
            inferences_per_s=float(row["Inferences/Second"]),
            mean_ms=milliseconds("Avg latency"),
            **{f"p{n}_ms": milliseconds(f"p{n} latency") for n in _PERCENTILES},
            server_ms={
                part.lower(): milliseconds(f"Server {part}")
                for part in ("Queue", "Compute Input", "Compute Infer", "Compute Output")
            },
        )
    except KeyError as error:
        raise PerfAnalyzerError(f"perf_analyzer's CSV file has no column {error}; it has {', '.join(row)}") from None
