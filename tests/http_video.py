"""Cameras on a port of this machine that speak HTTP. Tests start one with ``HttpCamera``.

The file itself is a program, so that it can be killed and stopped:

    python http_video.py PORT FOLDER

It prints its port. ``/mjpeg`` sends pictures as multipart, each ``PERIOD_S`` after the one before, as a camera would;
all other paths are files of the folder, such as the segments that ``Segments`` writes.
"""

from __future__ import annotations

import functools
import io
import itertools
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import numpy as np
from PIL import Image
from rtsp_server import CameraProcess

PERIOD_S = 0.04
FPS = 25


class HttpCamera(CameraProcess):
    """The server. Port 0 is any free one."""

    scheme = "http"

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        super().__init__(sys.executable, __file__, str(port), str(folder), stderr=subprocess.DEVNULL)

    def freeze(self) -> None:
        """Its connections stay open, and nothing comes any more."""
        self._process.send_signal(signal.SIGSTOP)


class Segments:
    """Writes a live playlist, ``live.m3u8``, and its segments into a folder, while the context is entered.

    A segment lasts half a second. At the end the playlist says that it is over.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._over = folder, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Segments:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        options = {"hls_time": "0.5", "hls_list_size": "4", "hls_flags": "delete_segments"}
        with av.open(str(self._folder / "live.m3u8"), "w", format="hls", options=options) as container:
            stream = container.add_stream("libx264", rate=FPS)
            stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
            stream.options = {"g": "12", "bf": "0", "tune": "zerolatency", "x264-params": "log-level=none"}
            for number in itertools.count():
                frame = av.VideoFrame.from_ndarray(np.full((144, 128), number % 256, np.uint8), format="yuv420p")
                frame.pts, frame.time_base = number, Fraction(1, FPS)
                container.mux(stream.encode(frame))
                if self._over.wait(PERIOD_S):
                    break
            container.mux(stream.encode())


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != "/mjpeg":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=picture")
        self.end_headers()
        for number in itertools.count():
            file = io.BytesIO()
            Image.new("RGB", (128, 96), (number % 256, 0, 0)).save(file, "JPEG")
            head = f"--picture\r\nContent-Type: image/jpeg\r\nContent-Length: {file.tell()}\r\n\r\n"
            self.wfile.write(head.encode() + file.getvalue() + b"\r\n")
            time.sleep(PERIOD_S)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), functools.partial(_Handler, directory=sys.argv[2]))
    print(server.server_port, flush=True)
    server.serve_forever()
