"""The web services of commands in a thread of this process, and plain HTTP to them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from http.client import HTTPConnection
from typing import Any
from unittest import mock

from patience import PATIENCE_S


class RunningService:
    """A service at 127.0.0.1, asked over HTTP. ``url`` and ``port`` are where it is."""

    url: str
    port: int

    def ask(self, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON; a POST where there is a body."""
        status, _, content = self.send("GET" if body is None else "POST", path, body, headers)
        return status, json.loads(content)

    def send(
        self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


class ServiceThread(RunningService):
    """A ``command`` that ends in aiohttp's ``run_app``, in a thread of this process, until the context is left."""

    def __init__(self, command: Callable[[], None]) -> None:
        from aiohttp import web

        self._loop = asyncio.new_event_loop()
        listens = threading.Event()

        def run_app(application: web.Application, *, sock: Any, **options: Any) -> None:
            self.port = sock.getsockname()[1]
            self._loop.call_soon(listens.set)
            real_run_app(application, sock=sock, loop=self._loop, handle_signals=False, **options)

        real_run_app = web.run_app
        self._thread = threading.Thread(target=command, daemon=True)
        with mock.patch.object(web, "run_app", run_app):
            self._thread.start()
            assert listens.wait(PATIENCE_S)
        self.url = f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        from aiohttp.web_runner import GracefulExit

        def end() -> None:
            raise GracefulExit

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(end)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()
