"""An RTSP server on a port of this machine, of Debian's GStreamer. Tests start it with ``RtspServer``.

The file itself is run by the system's Python, which has GStreamer's bindings and none of the project's packages:

    /usr/bin/python3 rtsp_server.py PORT LIVE.h264 [CLIP.mp4]

It prints its port. ``/live`` plays an elementary stream of H.264 in real time, again and again, as a camera would, and
``/clip`` the MP4 once.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

SYSTEM_PYTHON = "/usr/bin/python3"
FPS = 25


class CameraProcess:
    """A server as a process that prints its port, while the context is entered."""

    scheme: str

    def __init__(self, *command: str, stderr: int | None = None) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.port = int(self._process.stdout.readline())

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/{path}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.stdout.close()


class RtspServer(CameraProcess):
    """The server. Port 0 is any free one."""

    scheme = "rtsp"

    def __init__(self, live: Path, clip: Path | None = None, *, port: int = 0) -> None:
        super().__init__(SYSTEM_PYTHON, __file__, str(port), str(live), *([str(clip)] if clip else []))


@functools.cache
def why_not() -> str | None:
    """Why no RTSP server can run here; None where one can."""
    check = (
        "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import Gst, GstRtspServer; "
        "Gst.init(None); assert all(map(Gst.ElementFactory.find, ('h264parse', 'rtph264pay', 'qtdemux', 'appsrc')))"
    )
    if not Path(SYSTEM_PYTHON).exists():
        return f"no {SYSTEM_PYTHON}"
    found = subprocess.run([SYSTEM_PYTHON, "-c", check], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return None
    return (
        "no RTSP server: apt-get install gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good gstreamer1.0-plugins-bad "
        "python3-gi"
    )


def _serve(port: int, live: str, clip: str | None) -> None:
    import gi

    gi.require_version("Gst", "1.0")
    gi.require_version("GstRtspServer", "1.0")
    from gi.repository import GLib, Gst, GstRtspServer

    Gst.init(None)
    units = _access_units(Path(live).read_bytes())
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(str(port))
    mounts = server.get_mount_points()

    camera = GstRtspServer.RTSPMediaFactory()
    caps = f"video/x-h264,stream-format=byte-stream,alignment=au,framerate={FPS}/1"
    camera.set_launch(
        f"( appsrc name=frames is-live=true format=time caps={caps} ! h264parse config-interval=1 "
        "! rtph264pay name=pay0 pt=96 )"
    )
    camera.set_shared(True)
    camera.connect("media-configure", lambda _factory, media: _feed(media, units))
    mounts.add_factory("/live", camera)
    if clip:
        recording = GstRtspServer.RTSPMediaFactory()
        recording.set_launch(f"( filesrc location={clip} ! qtdemux ! h264parse ! rtph264pay name=pay0 pt=96 )")
        mounts.add_factory("/clip", recording)
    server.attach(None)
    print(server.get_bound_port(), flush=True)
    GLib.MainLoop().run()


def _feed(media: object, units: list[bytes]) -> None:
    """Push the next picture whenever one is due."""
    from gi.repository import GLib, Gst

    source = media.get_element().get_child_by_name("frames")  # type: ignore[attr-defined]
    step = Gst.SECOND // FPS
    count = 0

    def push() -> bool:
        nonlocal count
        buffer = Gst.Buffer.new_wrapped(units[count % len(units)])
        buffer.pts = buffer.dts = count * step
        buffer.duration = step
        count += 1
        return bool(source.emit("push-buffer", buffer) == Gst.FlowReturn.OK)

    push()
    GLib.timeout_add(1000 // FPS, push)


def _access_units(data: bytes) -> list[bytes]:
    """The pictures of an elementary stream of H.264 in which each has one slice."""
    codes = [found.start() for found in re.finditer(b"\0\0\1", data)]
    starts = [at - (data[at - 1 : at] == b"\0") for at in codes]
    ends = [*starts[1:], len(data)]
    units, unit = [], b""
    for start, end in zip(starts, ends):  # noqa: B905 - this runs on older Pythons, too
        unit += data[start:end]
        # Types 1 and 5 are slices; parameter sets and the like come before them.
        if data[data.index(b"\0\0\1", start) + 3] & 0x1F in (1, 5):
            units.append(unit)
            unit = b""
    return units


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
