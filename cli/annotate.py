"""Writes a copy of a stream with its labels drawn onto the frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from onestream.client.video import FrameResult
from onestream.wire.video import Open, Packet

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.frame import VideoFrame

_TIME_BASE = Fraction(1, 90_000)
_MARGIN = 4


class AnnotatedVideo:
    """Writes every frame that was sent, with the caption of the last result up to it.

    Packets are kept, and decoded again when their results come, so that few pictures are ever in memory. ``sent`` may
    be called by another thread than the rest. The file appears with the first result; ``show`` raises ValueError where
    it cannot be written.
    """

    def __init__(self, path: Path, caption: Callable[[FrameResult], str]) -> None:
        self._path, self._caption = path, caption
        self._packets: deque[Packet] = deque()
        self._frames: deque[VideoFrame] = deque()
        self._hidden: set[int | None] = set()
        self._format: Open | None = None
        self._decoder: Any = None
        self._container: OutputContainer | None = None
        self._stream: Any = None
        self._text = ""
        self._count = 0
        self._first_s: float | None = None
        self._last_pts = -1

    def sent(self, packet: Packet) -> None:
        """A packet went to the server."""
        self._packets.append(packet)

    def show(self, result: FrameResult, format: Open) -> None:
        """A result came: write the frames up to its own. ``format`` is that of the stream."""
        self._begin(format)
        while (frame := self._next()) is not None:
            # After a gap times begin anew, so that no frame counts as later.
            late = not result.after_gap and self._order(frame, result) > 0
            if late:
                break
            its_own = self._order(frame, result) == 0
            if its_own:
                self._text = self._caption(result)
            self._write(self._frames.popleft())
            if its_own:
                return
        self._text = self._caption(result)

    def close(self) -> None:
        """Write what is left, and finish the file."""
        if self._container is None:
            return
        while self._next(ended=True) is not None:
            self._write(self._frames.popleft())
        self._container.mux(self._stream.encode(None))
        self._container.close()

    def _order(self, frame: VideoFrame, result: FrameResult) -> int:
        """Above 0 where the frame comes after the result's, 0 where it is the same."""
        if frame.pts is not None and result.pts is not None:
            return frame.pts - result.pts
        return self._count - result.frame_index

    def _next(self, *, ended: bool = False) -> VideoFrame | None:
        """The next frame in the order of display, if its packets are here."""
        import av

        while not self._frames:
            try:
                if self._packets:
                    packet = self._packets.popleft()
                    if packet.is_discarded:
                        self._hidden.add(packet.pts)
                    coded = av.Packet(packet.data)
                    coded.pts, coded.dts = packet.pts, packet.dts
                    self._take(self._decoder.decode(coded))
                elif ended:
                    ended = False
                    self._take(self._decoder.decode(None))
                else:
                    return None
            except av.FFmpegError:
                # The server conceals what is damaged; here it is left out.
                continue
        return self._frames[0]

    def _take(self, frames: list[VideoFrame]) -> None:
        """Decoded frames, without those that are only there for others."""
        for frame in frames:
            if frame.pts in self._hidden:
                self._hidden.discard(frame.pts)
            else:
                self._frames.append(frame)

    def _begin(self, format: Open) -> None:
        if self._container is not None:
            return
        import av

        self._format = format
        # FFmpeg's own decoder of AV1 needs hardware.
        self._decoder = av.CodecContext.create("libdav1d" if format.codec == "av1" else format.codec, "r")
        self._decoder.extradata = format.extradata or None
        try:
            # PyAV itself opens the file only when the first packet is written.
            self._path.open("wb").close()
            self._container = av.open(str(self._path), "w")
        except (OSError, ValueError) as error:
            raise ValueError(f"{self._path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
        self._stream = self._container.add_stream(
            "libx264", rate=round(format.fps) or 25, options={"preset": "veryfast", "x264-params": "log-level=none"}
        )
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = self._stream.time_base = _TIME_BASE

    def _write(self, frame: VideoFrame) -> None:
        import av

        assert self._format is not None
        assert self._container is not None
        self._count += 1
        pixels = frame.to_ndarray(format="rgb24")
        if self._format.transpose:
            pixels = pixels.transpose(1, 0, 2)
        pixels = pixels[:: -1 if self._format.flip_rows else 1, :: -1 if self._format.flip_columns else 1]
        if not self._stream.codec_context.is_open:
            # 4:2:0 has one chroma value for two columns and two rows.
            self._stream.width, self._stream.height = pixels.shape[1] // 2 * 2, pixels.shape[0] // 2 * 2
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        _draw(picture, self._text)
        out = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24").reformat(
            width=self._stream.width, height=self._stream.height, format="yuv420p"
        )
        out.pts, out.time_base = self._time(frame), _TIME_BASE
        self._container.mux(self._stream.encode(out))

    def _time(self, frame: VideoFrame) -> int:
        """The frame's time in the file's time base; one frame later where the stream's clock stands still."""
        assert self._format is not None
        step = round(1 / (self._format.fps or 25.0) / _TIME_BASE)
        at = self._last_pts + step if self._last_pts >= 0 else 0
        if frame.pts is not None:
            seconds = float(frame.pts * self._format.time_base)
            self._first_s = seconds - float(at * _TIME_BASE) if self._first_s is None else self._first_s
            told = round((seconds - self._first_s) / _TIME_BASE)
            at = told if told > self._last_pts else at
        self._last_pts = at
        return at


def _draw(picture: Image.Image, text: str) -> None:
    if not text:
        return
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(max(10, picture.height // 30))
    left, top, right, bottom = draw.multiline_textbbox((2 * _MARGIN, 2 * _MARGIN), text, font=font)
    draw.rectangle((left - _MARGIN, top - _MARGIN, right + _MARGIN, bottom + _MARGIN), fill=(0, 0, 0))
    draw.multiline_text((2 * _MARGIN, 2 * _MARGIN), text, font=font, fill=(255, 255, 255))
