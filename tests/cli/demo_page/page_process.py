"""The page as a user starts it: ``onestream demo-page`` as a process, and plain HTTP to it."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

ROOT = Path(__file__).parents[3]
PHOTOS = ROOT / "examples" / "photos"


class PageProcess:
    """``onestream demo-page`` with some arguments, until the context is left: Ctrl-C, which must end it with 0."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "onestream", "demo-page", *arguments]
        # Python ignores Ctrl-C where its parent does, as shells make those in the background do.
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=_listen_to_ctrl_c
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        found = re.match(r"open (http://127\.0\.0\.1:(\d+)/) ", self.said)
        if found is None:
            self._process.kill()
            raise AssertionError(f"it said {self.said!r}")
        self.url, self.port, self.pid = found[1], int(found[2]), self._process.pid

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
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

    def stop(self) -> int:
        """Ctrl-C; the exit status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=30)

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self.stop()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert status == 0


def _listen_to_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pixels_of(data_url: str) -> npt.NDArray[np.uint8]:
    """The pixels of a picture that the page was sent."""
    head, content = data_url.split(",")
    assert re.fullmatch(r"data:image/(png|jpeg);base64", head)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
