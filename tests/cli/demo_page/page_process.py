"""``onestream demo page`` in a thread of this process or in a process of its own, and plain HTTP to it."""

from __future__ import annotations

import base64
import io
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from web_services import RunningService, ServiceThread

ROOT = Path(__file__).parents[3]
PHOTOS = ROOT / "examples" / "photos"


class RunningPage(RunningService):
    """A page, asked as its own script asks it."""

    def look(self, form: str, image: bytes) -> dict[str, Any]:
        """What the page shows about an image that is fine."""
        status, found = self.ask(f"/api/look?form={form}", image)
        assert status == 200, found
        return found


class PageProcess(RunningPage):
    """``onestream demo page`` with some arguments, until the context is left: Ctrl-C, which must end it with 0."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "onestream", "demo", "page", *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.said = self._process.stdout.readline()
        found = re.match(r"open (http://127\.0\.0\.1:(\d+)/) ", self.said)
        if found is None:
            self._process.kill()
            raise AssertionError(f"it said {self.said!r}")
        self.url, self.port = found[1], int(found[2])

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        status = self._process.wait(timeout=30)
        self._process.stdout.close()
        assert status == 0


class PageThread(ServiceThread, RunningPage):
    """The command in a thread of this process, for the server at ``address``, until the context is left."""

    def __init__(self, address: str, *, augmentation: Path | None = None) -> None:
        from onestream.cli.demo_page.command import demo_page

        super().__init__(lambda: demo_page(url=address, augmentation=augmentation, port=0))


def pixels_of(data_url: str) -> npt.NDArray[np.uint8]:
    """The pixels of a picture that the page was sent."""
    head, content = data_url.split(",")
    assert re.fullmatch(r"data:image/(png|jpeg);base64", head)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
