"""Writes a copy of a stream with its labels, or the boxes of its objects, drawn onto the frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from onestream.client.video import FrameResult, Sound
from onestream.client.video.sound import LATEST_S, SoundCopy
from onestream.wire.clock import Clock, Time
from onestream.wire.video import Open, Packet

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.frame import VideoFrame

_TIME_BASE = Fraction(1, 90_000)
_MARGIN = 4
_MATRICES, _BT601, _UNSPECIFIED = (1, 4, 5, 7, 9), 5, 2
"""Codes of H.273: the matrices that swscale writes, of which 5 stands for 6 as well."""
_FULL_RANGE, _LIMITED_RANGE = 2, 1
"""FFmpeg's AVColorRange."""


class AnnotatedVideo:
    """Writes every frame that was sent, with the objects, or else the caption, of the last result up to it.

    Packets are kept, and decoded again when their results come, so that few pictures are ever in memory. ``sent`` may
    be called by another thread than the rest. The file appears with the first result; ``show`` raises ValueError where
    it cannot be written. The shape of pixels and the colours' tags are the source's; ``sound`` is copied beside.
    """

    def __init__(self, path: Path, caption: Callable[[FrameResult], str], *, sound: Sound | None = None) -> None:
        self._path, self._caption, self._sound = path, caption, sound
        self._copy: SoundCopy | None = None
        self._packets: deque[Packet] = deque()
        # Each with when it is shown, as the server tells it.
        self._frames: deque[tuple[VideoFrame, Time]] = deque()
        self._hidden: set[int | None] = set()
        self._format: Open | None = None
        self._decoder: Any = None
        self._container: OutputContainer | None = None
        self._stream: Any = None
        self._result: FrameResult | None = None
        self._count = 0
        self._clock: Clock | None = None
        # From the server's times to those of the clock; None where they are not found yet.
        self._offset: Time | None = 0
        self._first_s: float | None = None
        self._last_pts = -1

    @property
    def left_out(self) -> list[str]:
        """A line for each track of sound that the container does not take."""
        return [] if self._copy is None else self._copy.left_out

    def sent(self, packet: Packet) -> None:
        """A packet went to the server."""
        self._packets.append(packet)

    def show(self, result: FrameResult, format: Open) -> None:
        """A result came: write the frames up to its own. ``format`` is that of the stream."""
        self._begin(format)
        if result.after_gap:
            self._offset = None
        while (found := self._next()) is not None:
            order = self._order(*found, result)
            if order > 0:
                break
            if order == 0:
                self._result = result
            self._write(*self._frames.popleft())
            if order == 0:
                return
        self._result = result

    def close(self) -> None:
        """Write what is left, and finish the file."""
        if self._container is None:
            return
        while self._next(ended=True) is not None:
            self._write(*self._frames.popleft())
        self._container.mux(self._stream.encode(None))
        self._copy_sound(LATEST_S)
        self._container.close()

    def _order(self, frame: VideoFrame, shown: Time, result: FrameResult) -> Time:
        """Above 0 where the frame comes after the result's, 0 where it is the same."""
        if frame.pts is None or result.pts is None:
            return self._count - result.frame_index
        if self._offset is None:
            # After a gap the server's times begin anew, so that no frame counts as later.
            if frame.pts != result.pts:
                return -1
            self._offset = shown - result.pts
        return shown - self._offset - result.pts

    def _next(self, *, ended: bool = False) -> tuple[VideoFrame, Time] | None:
        """The next frame in the order of display, if its packets are here, and when it is shown."""
        import av

        while not self._frames:
            try:
                if self._packets:
                    packet = self._packets.popleft()
                    if packet.is_discarded:
                        self._hidden.add(packet.pts)
                    coded = av.Packet(packet.data)
                    coded.pts, coded.dts, coded.duration = packet.pts, packet.dts, packet.duration
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
        assert self._clock is not None
        for frame in frames:
            if frame.pts in self._hidden:
                self._hidden.discard(frame.pts)
            else:
                self._frames.append((frame, self._clock.forward(frame.pts, frame.duration or 0)))

    def _begin(self, format: Open) -> None:
        if self._container is not None:
            return
        import av

        self._format = format
        self._clock = Clock(1 / Fraction(format.fps or 25.0) / format.time_base)
        # FFmpeg's own decoder of AV1 needs hardware.
        self._decoder = av.CodecContext.create("libdav1d" if format.codec == "av1" else format.codec, "r")
        self._decoder.extradata = format.extradata or None
        # What the codec's own header does not say, the container may.
        self._decoder.colorspace, self._decoder.color_range = format.matrix_tag, 2 if format.full_range else 0
        self._decoder.color_primaries, self._decoder.color_trc = format.primaries_tag, format.transfer_tag
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
        aspect = format.sample_aspect_ratio
        self._stream.codec_context.sample_aspect_ratio = 1 / aspect if format.transpose else aspect
        if self._sound is not None:
            self._copy = SoundCopy(self._sound, self._container, str(self._path))

    def _write(self, frame: VideoFrame, shown: Time) -> None:
        import av

        assert self._format is not None
        assert self._container is not None
        self._count += 1
        # PyAV 16 takes the frame's matrix only where another one is said of the RGB, where it means nothing.
        matrix = _matrix_of(int(frame.colorspace))
        pixels = frame.to_ndarray(format="rgb24", src_colorspace=matrix, dst_colorspace=_BT601)
        if self._format.transpose:
            pixels = pixels.transpose(1, 0, 2)
        pixels = pixels[:: -1 if self._format.flip_rows else 1, :: -1 if self._format.flip_columns else 1]
        if not self._stream.codec_context.is_open:
            # 4:2:0 has one chroma value for two columns and two rows.
            self._stream.width, self._stream.height = pixels.shape[1] // 2 * 2, pixels.shape[0] // 2 * 2
            self._tag(frame)
        coded = self._stream.codec_context
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        if self._result is not None:
            picture = self._drawn(picture, self._result)
        out = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24").reformat(
            width=self._stream.width,
            height=self._stream.height,
            format="yuv420p",
            dst_colorspace=_matrix_of(coded.colorspace),
            dst_color_range=coded.color_range,
        )
        out.pts, out.time_base = self._time(shown), _TIME_BASE
        self._container.mux(self._stream.encode(out))
        self._copy_sound()

    def _drawn(self, picture: Image.Image, result: FrameResult) -> Image.Image:
        found = result.result
        if found is None or found.drawn_size is None:
            _draw(picture, self._caption(result))
            return picture
        # Between the results of a sampled stream its size may change.
        return found.draw(picture) if picture.size == found.drawn_size[::-1] else picture

    def _tag(self, frame: VideoFrame) -> None:
        """Say what is true of the copy: its samples are the source's, by the same matrix and in the same range."""
        coded, matrix = self._stream.codec_context, int(frame.colorspace)
        coded.colorspace = matrix if matrix in (*_MATRICES, 6, _UNSPECIFIED) else _BT601
        full = frame.format.name.startswith("yuvj") or int(frame.color_range) == _FULL_RANGE
        coded.color_range = _FULL_RANGE if full else _LIMITED_RANGE
        coded.color_primaries, coded.color_trc = self._decoder.color_primaries, self._decoder.color_trc

    def _copy_sound(self, more_s: float = 0.0) -> None:
        """Write the sound up to the end of the newest frame, and so long after it."""
        if self._copy is None or self._first_s is None:
            return
        end_s = self._first_s + float((self._last_pts + self._step()) * _TIME_BASE)
        self._copy.write(end_s + more_s, origin_s=self._first_s)

    def _step(self) -> int:
        """How long a frame is shown, in the file's time base."""
        assert self._format is not None
        return round(1 / (self._format.fps or 25.0) / _TIME_BASE)

    def _time(self, shown: Time) -> int:
        """The frame's time in the file's time base, which may be coarser."""
        assert self._format is not None
        seconds = float(shown * self._format.time_base)
        self._first_s = seconds if self._first_s is None else self._first_s
        self._last_pts = max(round((seconds - self._first_s) / _TIME_BASE), self._last_pts + 1)
        return self._last_pts


def _matrix_of(tag: int) -> int:
    """The matrix that swscale is to write; without a tag the one by which it reads."""
    return tag if tag in _MATRICES else _BT601


def _draw(picture: Image.Image, text: str) -> None:
    if not text:
        return
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(max(10, picture.height // 30))
    left, top, right, bottom = draw.multiline_textbbox((2 * _MARGIN, 2 * _MARGIN), text, font=font)
    draw.rectangle((left - _MARGIN, top - _MARGIN, right + _MARGIN, bottom + _MARGIN), fill=(0, 0, 0))
    draw.multiline_text((2 * _MARGIN, 2 * _MARGIN), text, font=font, fill=(255, 255, 255))
