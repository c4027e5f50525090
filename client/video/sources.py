"""Sources of video streams: files, RTSP, HTTP, webcams, elementary streams, packets of your own.

A source is a value that says what to open; ``connect`` opens it and gives its packets, as they are stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, cast, runtime_checkable

from onestream.client.errors import UnsupportedInput
from onestream.client.video.sound import Sound
from onestream.wire.video import Open, Packet


class Feed(Protocol):
    """The packets of one connection to a source. Used by one thread, except for ``stop``."""

    @property
    def format(self) -> Open:
        """The format, which the server must know to decode the packets."""

    @property
    def endless(self) -> bool:
        """Whether an end of the packets means that the connection was lost."""

    def packets(self) -> Iterator[Packet]:
        """The packets in the order of storage. Raises ``UnreadableInput`` where they cannot be read on."""

    def stop(self) -> None:
        """End the packets as soon as possible; may be called by any thread."""

    def close(self) -> None:
        """Let go of the source."""


@runtime_checkable
class SoundingFeed(Feed, Protocol):
    """A feed whose source has sound beside the pictures."""

    def copy_sound(self, into: Sound) -> None:
        """Put the packets of sound that are met between those of ``packets`` into ``into``; to be called before."""


class Source(Protocol):
    """Something that can be opened, again and again where it can be connected to again."""

    @property
    def name(self) -> str:
        """The name of the source, for messages."""

    @property
    def live(self) -> bool:
        """Whether the packets come when they come: such streams drop rather than wait, unless told otherwise."""

    @property
    def can_reconnect(self) -> bool:
        """Whether a lost connection can be made again."""

    def connect(self) -> Feed:
        """Open it. Raises ``UnreadableInput``."""


@dataclass(frozen=True)
class File:
    """A video file: its path, its content as bytes, or a binary file object, which may be a pipe.

    Any container that FFmpeg reads, and elementary streams of H.264 and HEVC. ``realtime`` hands the packets over when
    a camera would, by their times, and makes the stream a live one. ``format`` is FFmpeg's name of the container, for
    the rare content that cannot be recognized.
    """

    file: str | os.PathLike[str] | bytes | BinaryIO
    realtime: bool = False
    format: str | None = None

    @property
    def name(self) -> str:
        """The path; what it is where there is none."""
        if isinstance(self.file, (str, os.PathLike)):
            return os.fspath(self.file)
        return f"{len(self.file)} bytes" if isinstance(self.file, bytes) else str(getattr(self.file, "name", "a file"))

    @property
    def live(self) -> bool:
        """Only where it plays in real time."""
        return self.realtime

    can_reconnect = False

    def connect(self) -> Feed:
        """Open it. Raises ``UnreadableInput``."""
        from onestream.client.video.demux import open_file

        return open_file(self.file, self.name, realtime=self.realtime, format=self.format)


@dataclass(frozen=True)
class Rtsp:
    """A camera or server that speaks RTSP.

    ``transport`` is *tcp* or *udp*; over UDP packets may be lost. ``open_timeout_s`` and ``read_timeout_s`` bound how
    long nothing may come before the connection counts as lost.
    """

    url: str
    transport: str = "tcp"
    open_timeout_s: float = 10.0
    read_timeout_s: float = 10.0

    live = True
    can_reconnect = True

    def __post_init__(self) -> None:
        if self.transport not in ("tcp", "udp"):
            raise ValueError(f"transport={self.transport!r}, expected 'tcp' or 'udp'")

    @property
    def name(self) -> str:
        """The address without user and password."""
        return _without_credentials(self.url)

    def connect(self) -> Feed:
        """Open it. Raises ``UnreadableInput``."""
        from onestream.client.video.demux import open_rtsp

        return open_rtsp(
            self.url,
            self.name,
            transport=self.transport,
            open_timeout_s=self.open_timeout_s,
            read_timeout_s=self.read_timeout_s,
        )


@dataclass(frozen=True)
class Http:
    """A camera or server of video over HTTP: multipart MJPEG, HLS or MPEG-TS; also a recording, in real time.

    Frames of MJPEG have the times at which they came here, as the stream has none. Those of HLS and MPEG-TS have their
    PTS. HLS begins with the newest segment; its frames come together, and are handed over by their times.
    ``open_timeout_s`` and ``read_timeout_s`` are as of ``Rtsp``; a segment of HLS must be shorter than the latter.
    """

    url: str
    open_timeout_s: float = 10.0
    read_timeout_s: float = 20.0

    live = True
    can_reconnect = True

    @property
    def name(self) -> str:
        """The address without user and password, and without the values of its query, which may be such."""
        return _without_credentials(self.url)

    def connect(self) -> Feed:
        """Open it. Raises ``UnreadableInput``."""
        from onestream.client.video.demux import open_http

        return open_http(self.url, self.name, open_timeout_s=self.open_timeout_s, read_timeout_s=self.read_timeout_s)


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    path, mark, query = path.partition("?")
    query = "&".join(part.partition("=")[0] + "=…" for part in query.split("&")) if mark else ""
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}{mark}{query}"


@dataclass(frozen=True)
class Webcam:
    """A camera of this machine, by Video4Linux.

    The device's own MJPEG is sent as it is. A device that gives only raw pictures is encoded here, as H.264.
    ``size`` is (width, height); the device chooses where nothing is said.
    """

    device: str = "/dev/video0"
    size: tuple[int, int] | None = None
    fps: float | None = None

    live = True
    can_reconnect = True

    @property
    def name(self) -> str:
        """The device."""
        return self.device

    def connect(self) -> Feed:
        """Open it. Raises ``UnreadableInput``."""
        from onestream.client.video.webcam import open_webcam

        return open_webcam(self.device, size=self.size, fps=self.fps)


@dataclass(frozen=True)
class AnnexB:
    """An elementary stream of H.264 or HEVC (Annex B) that comes in pieces of any size, from an encoder for example.

    It carries no times: frames are ``1 / fps`` seconds apart. A finished stream in a file or in bytes is a ``File``.
    """

    chunks: Iterable[bytes]
    codec: str = "h264"
    fps: float = 25.0
    live: bool = False
    name: str = "annex b"

    can_reconnect = False

    def __post_init__(self) -> None:
        if self.codec not in ("h264", "hevc"):
            raise ValueError(f"codec={self.codec!r}, expected 'h264' or 'hevc'")
        if not self.fps > 0:
            raise ValueError(f"fps={self.fps!r}, expected more than 0")

    def connect(self) -> Feed:
        """Open it: reads up to the first picture. Raises ``UnreadableInput``."""
        from onestream.client.video.demux import annex_b

        return _PacketFeed(*annex_b(self.chunks, self.name, codec=self.codec, fps=self.fps))


@dataclass(frozen=True)
class PacketSource:
    """Packets that you have: ``format`` says what they are (its ``mode`` and ``results`` do not matter here)."""

    format: Open
    packets: Iterable[Packet] = field(repr=False)
    live: bool = False
    name: str = "packets"

    can_reconnect = False

    def connect(self) -> Feed:
        """Begin to read them."""
        return _PacketFeed(self.format, iter(self.packets))


class _PacketFeed:
    endless = False

    def __init__(self, format: Open, packets: Iterator[Packet]) -> None:
        self.format, self._packets, self._stopped = format, packets, False

    def packets(self) -> Iterator[Packet]:
        """Each packet, until stopped."""
        for packet in self._packets:
            if self._stopped:
                return
            yield packet

    def stop(self) -> None:
        """End before the next packet."""
        self._stopped = True

    def close(self) -> None:
        """Nothing to let go."""


VideoInput = str | os.PathLike[str] | bytes | BinaryIO | Source
"""A path, an address (``rtsp://…``, ``http://…``), ``/dev/video…``, the bytes of a file, a binary file object, or any
source of this module."""


def source_of(given: VideoInput) -> Source:
    """The source that ``given`` stands for. Raises ``UnsupportedInput`` for anything else."""
    if isinstance(given, str) and given.lower().startswith(("rtsp://", "rtsps://")):
        return Rtsp(given)
    if isinstance(given, str) and given.lower().startswith(("http://", "https://")):
        return Http(given)
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        scheme, colon, _ = path.partition("://")
        if colon and scheme.isalnum():
            raise UnsupportedInput(
                f"streams of {scheme}:// are not read; expected a file, rtsp://, http:// or /dev/video…"
            )
        return Webcam(path) if path.startswith("/dev/video") else File(path)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return File(bytes(given))
    if hasattr(given, "connect") and hasattr(given, "live"):
        return cast(Source, given)
    if hasattr(given, "read"):
        return File(given)
    raise UnsupportedInput(
        f"got {type(given).__name__} as a video source, expected a path, rtsp://…, http://…, /dev/video…, bytes, "
        "a binary file, or a source of onestream.client.video (AnnexB for pieces of H.264 or HEVC, PacketSource for "
        "packets)"
    )
