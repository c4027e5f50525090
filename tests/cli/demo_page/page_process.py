"""``onestream demo page`` in a thread of this process or in a process of its own, and plain HTTP to it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from patience import PATIENCE_S
from PIL import Image

ROOT = Path(__file__).parents[3]
PHOTOS = ROOT / "examples" / "photos"


class RunningPage:
    """A page at 127.0.0.1, asked over HTTP. ``url`` and ``port`` are where it is."""

    url: str
    port: int

    def ask(self, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON; a POST where there is a body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def look(self, form: str, image: bytes) -> dict[str, Any]:
        """What the page shows about an image that is fine."""
        status, found = self.ask(f"/api/look?form={form}", image)
        assert status == 200, found
        assert isinstance(found, dict)
        return found


class PageProcess(RunningPage):
    """``onestream demo page`` with some arguments, until the context is left: Ctrl-C, which must end it with 0."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "onestream", "demo", "page", *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        found = re.match(r"open (http://127\.0\.0\.1:(\d+)/) ", self.said)
        if found is None:
            self._process.kill()
            raise AssertionError(f"it said {self.said!r}")
        self.url, self.port = found[1], int(found[2])

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        status = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert status == 0


class PageThread(RunningPage):
    """The command in a thread of this process, for the server at ``address``, until the context is left."""

    def __init__(self, address: str, *, augmentation: Path | None = None) -> None:
        from aiohttp import web

        from onestream.cli.demo_page.command import demo_page

        self._loop = asyncio.new_event_loop()
        listens = threading.Event()

        def run_app(application: web.Application, *, sock: Any, **options: Any) -> None:
            self.port = sock.getsockname()[1]
            self._loop.call_soon(listens.set)
            real_run_app(application, sock=sock, loop=self._loop, handle_signals=False, **options)

        def run() -> None:
            demo_page(url=address, augmentation=augmentation, port=0)

        real_run_app = web.run_app
        self._thread = threading.Thread(target=run, daemon=True)
        with mock.patch.object(web, "run_app", run_app):
            self._thread.start()
            assert listens.wait(PATIENCE_S)
        self.url = f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> PageThread:
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


def pixels_of(data_url: str) -> npt.NDArray[np.uint8]:
    """The pixels of a picture that the page was sent."""
    head, content = data_url.split(",")
    assert re.fullmatch(r"data:image/(png|jpeg);base64", head)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
