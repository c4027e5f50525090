"""Traces of requests: Triton's options for them, and the file that takes its spans where there is no collector."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from io import FileIO
from pathlib import Path
from socketserver import ThreadingTCPServer
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from onestream.serving.server.errors import ServerError

MOST_BYTES = 100 << 20
"""A trace file that is larger is renamed to ``NAME.1``, and a new one is begun."""

_EXPORT_EVERY_MS = 1000
# An ensemble of three steps makes eight spans a request; what does not fit before an export is dropped.
_MOST_WAITING_SPANS = 16384
_LARGEST_EXPORT_BYTES = 64 << 20
_READ_TIMEOUT_S = 10.0
_COLLECTOR_TIMEOUT_S = 3.0
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Spans go to an OTLP/HTTP collector at ``url``, those of one request of ``rate``."""

    url: str
    rate: int

    def arguments(self) -> tuple[str, ...]:
        """The options of tritonserver but for the address."""
        settings = (
            "mode=opentelemetry",
            "level=TIMESTAMPS",
            f"rate={self.rate}",
            "opentelemetry,resource=service.name=onestream",
            f"opentelemetry,bsp_schedule_delay={_EXPORT_EVERY_MS}",
            f"opentelemetry,bsp_max_queue_size={_MOST_WAITING_SPANS}",
        )
        return tuple(f"--trace-config={setting}" for setting in settings)

    @property
    def address_argument(self) -> str:
        """The option that names the address; who knows that of a trace file may write into it."""
        return f"--trace-config=opentelemetry,url={self.url}"

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The changes to Triton's environment by which no proxy gets spans that stay on this machine."""
        if not _stays_here(self.url):
            return {}
        spared = given.get("no_proxy") or given.get("NO_PROXY")
        # Last: the curl in Triton 2.51 finds an IP address only there.
        value = ",".join(filter(None, [spared, urlsplit(self.url).hostname]))
        return {"no_proxy": value, "NO_PROXY": value}


def is_collector(to: str) -> bool:
    """Whether ``to`` is a collector's address, and no file's path. Raises ValueError for other addresses."""
    if "://" not in to:
        return False
    parts = urlsplit(to)
    # Triton takes the address in one argument, which a comma or a space would end.
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not parts.path.strip("/")
        or re.search(r"[\s,]", to)
    ):
        raise ValueError(f"trace={to!r}, expected a file or a collector such as http://127.0.0.1:4318/v1/traces")
    return True


def collector_complaint(url: str) -> str | None:
    """The problem of a collector, which is sent an empty export; None where it accepts that."""
    request = Request(url, b'{"resourceSpans":[]}', {"Content-Type": "application/json"})
    proxies = ProxyHandler({}) if _stays_here(url) else ProxyHandler()
    try:
        build_opener(proxies).open(request, timeout=_COLLECTOR_TIMEOUT_S).close()
    except HTTPError as error:
        return f"it answers {error.code}"
    except (OSError, HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
    return None


def _stays_here(url: str) -> bool:
    return urlsplit(url).hostname in _THIS_MACHINE


class TraceFile:
    """Takes the spans of a Triton on this machine, and appends each export to a file as a line of OTLP JSON.

    The OpenTelemetry Collector's file exporter writes the same. A file that grows too large is put aside; where one was
    moved or deleted, a new one is begun.

    Args:
        path: the file; made where it does not exist.
        announce: receives a line when writing begins to fail, and for each export that cannot be taken.
        most_bytes: the size from which on the file is put aside.

    Raises:
        ServerError: the file cannot be written.
    """

    def __init__(self, path: Path, *, announce: Callable[[str], None], most_bytes: int = MOST_BYTES) -> None:
        self._path, self._announce, self._most_bytes = path, announce, most_bytes
        self._lock = threading.Lock()
        self._failing = False
        try:
            self._file = _open(path)
        except OSError as error:
            raise ServerError(f"cannot write traces to {path}: {error.strerror}") from None
        # Web pages in a browser here cannot guess it; users of this machine can read it in Triton's arguments.
        route = f"/{secrets.token_hex(16)}/v1/traces"
        self._server = _Receiver(("127.0.0.1", 0), route, self._append, announce)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{route}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="trace-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the exports that are on their way, and close the file."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._file.close()

    def _append(self, line: bytes) -> bool:
        """Write a line; tell whether it was written."""
        with self._lock:
            try:
                self._renew()
                size = os.fstat(self._file.fileno()).st_size
                if self._file.write(line) != len(line):
                    # The disk is full: half a line would spoil the next one, too.
                    self._file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                if not self._failing:
                    self._announce(f"traces are lost: cannot write {self._path}: {error.strerror}")
                self._failing = True
                return False
            self._failing = False
            return True

    def _renew(self) -> None:
        """Begin a new file where the old one is no longer at its path, or too large."""
        file = os.fstat(self._file.fileno())
        with contextlib.suppress(FileNotFoundError):  # someone else moved or deleted it
            if os.path.samestat(file, self._path.stat()):
                if file.st_size < self._most_bytes:
                    return
                os.replace(self._path, f"{self._path}.1")
        old, self._file = self._file, _open(self._path)
        old.close()


def _open(path: Path) -> FileIO:
    return path.open("ab", buffering=0)


class _Receiver(ThreadingTCPServer):
    """A collector that knows one path, and hands each export on as one line. Its close waits for those on their way."""

    def __init__(
        self, address: tuple[str, int], path: str, append: Callable[[bytes], bool], announce: Callable[[str], None]
    ) -> None:
        self.path, self.append, self._announce = path, append, announce
        super().__init__(address, _Export)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Say in one line why an export was not taken; nothing where its sender went away."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self._announce(f"traces are lost: {type(error).__name__}: {error}")


class _Export(BaseHTTPRequestHandler):
    server: _Receiver
    timeout = _READ_TIMEOUT_S

    def do_POST(self) -> None:
        """Take an export."""
        size = self.headers.get("Content-Length", "")
        if self.path != self.server.path:
            self._answer(404)
        elif not size.isdecimal() or int(size) > _LARGEST_EXPORT_BYTES:
            self._answer(413)
        else:
            try:
                spans = json.loads(self.rfile.read(int(size)))
            except ValueError:
                self._answer(400)
                return
            line = json.dumps(spans, separators=(",", ":")).encode() + b"\n"
            self._answer(200 if self.server.append(line) else 503)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing on stderr."""
