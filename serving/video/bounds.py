"""What a video stream may ask of the server."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from onestream.wire.refusals import StreamRefusal, bad_stream, shortened
from onestream.wire.video import Open

if TYPE_CHECKING:
    from onestream.serving.stream_options import VideoOptions

MOST_RESULTS = 1 << 16
"""Results that a client may ask for ahead. What it does not read waits in Triton, which sets no bound."""


class BadStream(Exception):
    """A stream is refused or ended: ``code`` is for programs, ``reason`` for people, in at most 200 characters."""

    def __init__(self, code: StreamRefusal, reason: str) -> None:
        reason = shortened(reason)
        super().__init__(code, reason)
        self.code, self.reason = code, reason

    def __str__(self) -> str:
        return bad_stream(self.code, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on all streams together and on each.

    ``max_streams``: streams that are open at once. ``max_pixels``: height x width of a picture. ``max_fps`` and
    ``max_bitrate`` (bit/s): what the container may declare; the bitrate of live streams is also measured.
    ``buffer_bytes``: packets that wait in the server. ``results``: frames and results that wait in the server, however
    much credit the client gives. ``idle_s``: a stream ends that for so long sent no packet, took no result, and was
    sent nothing. ``max_memory_bytes``: what all streams together may add to the memory of the process, as measured; 32
    usual streams of 1080p, whose decoders keep about five pictures of 3 MB each, take a third of the default.
    """

    max_streams: int = 32
    max_pixels: int = 1920 * 1088
    max_fps: float = 240.0
    max_bitrate: int = 200_000_000
    buffer_bytes: int = 4 * 1024 * 1024
    results: int = 32
    idle_s: float = 30.0
    max_memory_bytes: int = 2 * 1024**3

    @classmethod
    def of(cls, options: VideoOptions) -> Bounds:
        """Those of a pipeline."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})

    def check(self, opened: Open, *, streams: int) -> None:
        """Raise ``BadStream`` where a stream may not be opened beside ``streams`` others."""
        if streams >= self.max_streams:
            raise BadStream("too_many_streams", f"{streams} streams are open; at most {self.max_streams} are allowed")
        self.check_size(opened.height, opened.width)
        if opened.fps > self.max_fps:
            raise BadStream("too_fast", f"the stream declares {opened.fps:g} frames/s; at most {self.max_fps:g}")
        if opened.bitrate > self.max_bitrate:
            raise BadStream("too_fast", f"the stream declares {opened.bitrate} bit/s; at most {self.max_bitrate}")
        if not 1 <= opened.results <= MOST_RESULTS:
            raise BadStream("bad_message", f"results is {opened.results}; a client may take 1 to {MOST_RESULTS} ahead")

    def check_size(self, height: int, width: int) -> None:
        """Raise ``BadStream`` for a picture that is too large."""
        if height * width > self.max_pixels:
            raise BadStream(
                "too_large",
                f"its pictures have {width}x{height} = {height * width} pixels; at most {self.max_pixels} are allowed "
                "(video.max_pixels of the pipeline)",
            )


class Rate:
    """Refuses a live stream that sends more than it may, over windows of five seconds."""

    _WINDOW_S = 5.0

    def __init__(self, max_bitrate: int | None) -> None:
        self._most_bytes = None if max_bitrate is None else max_bitrate * self._WINDOW_S / 8
        self._began_s, self._bytes = time.monotonic(), 0

    def add(self, size: int) -> None:
        """Count bytes; raises ``BadStream`` where they are too many."""
        now = time.monotonic()
        if now - self._began_s > self._WINDOW_S:
            self._began_s, self._bytes = now, 0
        self._bytes += size
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            raise BadStream("too_fast", f"more than {self._most_bytes * 8 / self._WINDOW_S:.0f} bit/s arrive")
