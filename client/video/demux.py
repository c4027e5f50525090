"""Opens sources with PyAV: packets, and the container's description of them."""

from __future__ import annotations

import io
import itertools
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO

from onestream.client.errors import TruncatedInput, UnreadableInput
from onestream.client.images import Pipe
from onestream.client.video.sound import Sound
from onestream.wire.clock import Clock, Time
from onestream.wire.install import install_command
from onestream.wire.truncation import truncation
from onestream.wire.video import MAX_ASPECT, MAX_TAG, Open, Packet

try:
    import av as av
except ImportError:
    raise UnreadableInput(f"video is read with PyAV, which is not installed: {install_command('video')}") from None

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.packet import Packet as AVPacket
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_UNSPECIFIED = 2
_NOTHING_CAME = "nothing came in time"
_HLS = "hls"
_WITHOUT_TIMES = ("mpjpeg", "mjpeg")
"""Formats whose times FFmpeg makes up, by counting."""
_ARRIVAL_BASE = Fraction(1, 90_000)
_MOST_LATE_S = 1.0
_USUAL_FPS = 25
_FULL_RANGE = {1: False, 2: True}
"""By FFmpeg's AVColorRange; 0 is unspecified."""


def open_file(
    file: str | os.PathLike[str] | bytes | BinaryIO, name: str, *, realtime: bool, format: str | None
) -> ContainerFeed:
    """A file, its content, or a file object. Raises ``UnreadableInput``."""
    turned = (False, False, False)
    if isinstance(file, (str, os.PathLike)) and stat.S_ISFIFO(_mode(file)):
        # It can be read once, and is waited for as long as for any pipe, not for ever.
        file = io.BufferedReader(Pipe(file))
    if isinstance(file, (str, os.PathLike, bytes)):
        with open_container(_readable(file), name, format=format) as container:
            turned = _orientation(container, name)
    container = open_container(_readable(file), name, format=format)
    feed = ContainerFeed(container, name, realtime=realtime, file=file)
    feed.format = replace(feed.format, transpose=turned[0], flip_rows=turned[1], flip_columns=turned[2])
    return feed


def _mode(path: str | os.PathLike[str]) -> int:
    """The kind of a file, 0 where there is none."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0


def open_rtsp(url: str, name: str, *, transport: str, open_timeout_s: float, read_timeout_s: float) -> ContainerFeed:
    """A stream by RTSP. Raises ``UnreadableInput``."""
    container = open_container(
        url, name, options={"rtsp_transport": transport}, timeout=(open_timeout_s, read_timeout_s)
    )
    # A recording that is served by RTSP has a length, and so an end.
    return ContainerFeed(container, name, endless=not container.duration, read_timeout_s=read_timeout_s)


def open_http(url: str, name: str, *, open_timeout_s: float, read_timeout_s: float) -> ContainerFeed:
    """What is served by HTTP: multipart MJPEG, HLS, MPEG-TS, files. Raises ``UnreadableInput``."""

    def connect() -> InputContainer:
        # HLS begins with its newest segment.
        return open_container(url, name, options={"live_start_index": "-1"}, timeout=(open_timeout_s, read_timeout_s))

    def is_over() -> bool:
        """Whether a playlist that was live has its end by now, where FFmpeg cannot tell it from a lost server."""
        with suppress(UnreadableInput), connect() as again:
            return bool(again.duration)
        return False

    container = connect()
    is_hls, is_live = container.format.name == _HLS, not container.duration
    return ContainerFeed(
        container,
        name,
        # The frames of a segment, or of a recording, come at once.
        realtime=is_hls or not is_live,
        endless=is_live,
        read_timeout_s=read_timeout_s,
        is_over=is_over if is_hls else None,
    )


def _readable(file: str | os.PathLike[str] | bytes | BinaryIO) -> Any:
    if isinstance(file, bytes):
        return io.BytesIO(file)
    # As "file:", a path cannot name another protocol.
    return f"file:{os.fspath(file)}" if isinstance(file, (str, os.PathLike)) else file


def _content(file: str | os.PathLike[str] | bytes | BinaryIO) -> AbstractContextManager[BinaryIO | None]:
    """What can be looked up in a file that was read; None in a pipe."""
    if isinstance(file, bytes):
        return io.BytesIO(file)
    if isinstance(file, (str, os.PathLike)):
        return open(file, "rb") if os.path.isfile(file) else nullcontext(None)
    return nullcontext(file if getattr(file, "seekable", lambda: False)() else None)


def open_container(
    file: Any,
    name: str,
    *,
    format: str | None = None,
    options: dict[str, str] | None = None,
    timeout: tuple[float, float] | None = None,
) -> InputContainer:
    """What PyAV opens. Raises ``UnreadableInput``."""
    began_s = time.monotonic()
    try:
        container: InputContainer = av.open(
            file, mode="r", format=format, options=options or {}, timeout=timeout, metadata_errors="replace"
        )
        return container
    except (av.FFmpegError, OSError) as error:
        # FFmpeg takes what it has by then for damaged.
        is_late = timeout is not None and time.monotonic() - began_s >= timeout[0]
        reason = _NOTHING_CAME if is_late else read_error(error)
        raise UnreadableInput(f"the video cannot be opened: {reason}", name=name) from None
    except ValueError as error:
        raise UnreadableInput(f"the video cannot be opened: {error}", name=name) from None


def read_error(error: Exception) -> str:
    """Why PyAV could not read on."""
    if isinstance(error, av.ExitError):
        return _NOTHING_CAME
    return str(getattr(error, "strerror", None) or error)


def video_of(container: InputContainer, name: str) -> VideoStream:
    """The first stream of video. Raises ``UnreadableInput`` where there is none."""
    pictures = av.stream.Disposition.attached_pic
    for stream in container.streams.video:
        # A stream whose codec FFmpeg does not know has no context.
        if not stream.disposition & pictures and stream.codec_context is not None:
            return stream
    raise UnreadableInput("there is no video in it", name=name)


def _orientation(container: InputContainer, name: str) -> tuple[bool, bool, bool]:
    """How the first frame is turned to be shown: transpose, flip rows, flip columns.

    The matrix maps (x, y) to (a x + c y, b x + d y) in 16.16 fixed point (ISO/IEC 14496-12, 8.3.2).
    """
    frame = _first_frame(container, video_of(container, name))
    matrix: Any = None if frame is None else frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return (False, False, False)
    numbers = memoryview(bytes(matrix)).cast("i")
    a, b, c, d = numbers[0], numbers[1], numbers[3], numbers[4]
    if a and d and not b and not c:
        return (False, d < 0, a < 0)
    if b and c and not a and not d:
        return (True, b < 0, c < 0)
    raise UnreadableInput("it is shown turned by an angle; only quarter turns and mirrors are possible", name=name)


def _first_frame(container: InputContainer, stream: VideoStream) -> VideoFrame | None:
    try:
        return next(container.decode(stream), None)
    except (av.FFmpegError, OSError, IndexError):
        # What is damaged is the server's to conceal.
        return None


def format_of(stream: VideoStream, container: InputContainer) -> Open:
    """What the container says of the stream."""
    context = stream.codec_context
    return Open(
        codec=context.codec.canonical_name,
        width=context.width,
        height=context.height,
        time_base=Fraction(stream.time_base or Fraction(1, 90_000)),
        fps=float(stream.average_rate or 0),
        bitrate=int(context.bit_rate or container.bit_rate or 0),
        matrix_tag=int(context.colorspace),
        full_range=_FULL_RANGE.get(int(context.color_range)),
        primaries_tag=_tag(context.color_primaries),
        transfer_tag=_tag(context.color_trc),
        sample_aspect_ratio=_aspect(stream),
        # Found while the container was probed; older PyAV does not tell.
        reorder_depth=getattr(context, "reorder_depth", None),
        extradata=bytes(context.extradata or b""),
    )


def _tag(code: int) -> int:
    """A code of H.273; FFmpeg has others of its own, which nobody else reads."""
    return code if 0 <= code <= MAX_TAG else _UNSPECIFIED


def _aspect(stream: VideoStream) -> Fraction:
    """Of the container, else of the codec; square where neither says it, or says what cannot be."""
    said = stream.sample_aspect_ratio
    return (
        said if said and 0 < min(said.as_integer_ratio()) <= max(said.as_integer_ratio()) <= MAX_ASPECT else Fraction(1)
    )


class ContainerFeed:
    """The first video stream of an open container."""

    def __init__(
        self,
        container: InputContainer,
        name: str,
        *,
        realtime: bool = False,
        endless: bool = False,
        file: str | os.PathLike[str] | bytes | BinaryIO | None = None,
        read_timeout_s: float | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        """``file`` is what the container was opened from, where it is one: such a thing may be cut short.

        ``read_timeout_s`` is that of the open container. ``is_over`` tells, at the end of an endless one, whether it
        has ended well.
        """
        self._container, self._name, self._realtime, self.endless = container, name, realtime, endless
        self._file, self._read_timeout_s, self._is_over = file, read_timeout_s, is_over
        try:
            self._stream = video_of(container, name)
        except UnreadableInput:
            container.close()
            raise
        self.format = format_of(self._stream, container)
        self._opened_s = time.monotonic()
        self._by_arrival = endless and container.format.name in _WITHOUT_TIMES
        if self._by_arrival:
            self.format = replace(self.format, time_base=_ARRIVAL_BASE)
        self._sound: Sound | None = None
        self._stopped = threading.Event()

    def copy_sound(self, into: Sound) -> None:
        """Put the packets of sound that are met between those of ``packets`` into ``into``; to be called before."""
        if into.begin(self._tracks()):
            self._sound = into

    def _tracks(self) -> list[AudioStream]:
        # A stream whose codec FFmpeg does not know has no context.
        return [track for track in self._container.streams.audio if track.codec_context is not None]

    def packets(self) -> Iterator[Packet]:
        """The packets as they are stored; by their times where the source plays in real time.

        After the last one ``TruncatedInput`` is raised where the file was cut short.
        """
        base, step_s = self.format.time_base, 1 / Fraction(self.format.fps or _USUAL_FPS)
        clock = Clock(step_s / base)
        pace = _Pace(base, most_late_s=_MOST_LATE_S if self.endless else math.inf) if self._realtime else None
        number, last_incomplete = 0, False
        try:
            for packet in self._demuxed():
                if self._stopped.is_set():
                    return
                # The last one is empty: it tells a decoder that the file ends.
                if packet.size and packet.stream_index != self._stream.index:
                    if self._sound is not None:
                        self._sound.put(packet)
                elif packet.size:
                    if self._by_arrival:
                        packet.pts = packet.dts = round((time.monotonic() - self._opened_s) / base)
                        packet.duration = 0
                    at = clock.forward(packet.pts if packet.dts is None else packet.dts, packet.duration or 0)
                    if self._sound is not None:
                        self._sound.follow(at * base, shift_s=clock.shift * base)
                    number, last_incomplete = number + 1, packet.is_corrupt
                    found = Packet(
                        bytes(packet),
                        packet.pts,
                        packet.dts,
                        max(packet.duration or 0, 0),
                        packet.is_keyframe,
                        packet.is_discard,
                    )
                    if pace is not None and self._stopped.wait(pace.wait_s(at)):
                        return
                    yield found
        except (av.FFmpegError, OSError) as error:
            raise UnreadableInput(
                f"cannot be read on after {number} packets: {read_error(error)}", name=self._name
            ) from None
        except IndexError:
            # PyAV's answer to a stream that was not there when the file was opened.
            raise UnreadableInput(f"another stream begins after {number} packets", name=self._name) from None
        if self._is_over is not None and self.endless:
            self.endless = not self._is_over()
        self._check_whole(number, last_incomplete=last_incomplete)

    def _demuxed(self) -> Iterator[AVPacket[Any]]:
        """What is read. Raises TimeoutError where no picture came in time, also if there was sound.

        After FFmpeg's own timeout comes a picture that its parser still held, and the next would take as long again.
        """
        began_s = time.monotonic()
        tracks = () if self._sound is None and self._read_timeout_s is None else self._tracks()
        for packet in self._container.demux(self._stream, *tracks):
            is_late = self._read_timeout_s is not None and time.monotonic() - began_s >= self._read_timeout_s
            yield packet
            if is_late:
                raise TimeoutError(_NOTHING_CAME)
            if packet.stream_index == self._stream.index:
                # What the caller did with it took time, too.
                began_s = time.monotonic()

    def _check_whole(self, packets: int, *, last_incomplete: bool) -> None:
        if self._file is None:
            return
        # Only there the index has every picture; older PyAV does not tell.
        lists_all = "mov" in self._container.format.name.split(",")
        indexed = len(getattr(self._stream, "index_entries", ())) if lists_all else 0
        with _content(self._file) as content:
            cut = truncation(content, packets=packets, last_incomplete=last_incomplete, indexed=indexed)
        if cut is not None:
            raise TruncatedInput(cut, name=self._name)

    def stop(self) -> None:
        """End before the next packet."""
        self._stopped.set()

    def close(self) -> None:
        """Close the container."""
        self._container.close()


class _Pace:
    """Paces packets as a camera would; where one is later than ``most_late_s``, the next ones go by that."""

    def __init__(self, time_base: Fraction, *, most_late_s: float) -> None:
        self._time_base, self._most_late_s, self._began_s = time_base, most_late_s, time.monotonic()
        self._first: Time | None = None

    def wait_s(self, at: Time) -> float:
        """Seconds until what is due at a time is due."""
        self._first = at if self._first is None else self._first
        left_s = self._began_s + float((at - self._first) * self._time_base) - time.monotonic()
        if left_s < -self._most_late_s:
            self._first, self._began_s = at, time.monotonic()
        return max(0.0, left_s)


def annex_b(chunks: Iterable[bytes], name: str, *, codec: str, fps: float) -> tuple[Open, Iterator[Packet]]:
    """The format of an elementary stream that comes in pieces, and its packets: one picture each, without times.

    Reads up to the first picture. Raises ``UnreadableInput``, also while the packets are read.
    """
    parser: Any = av.CodecContext.create(codec, "r")

    def parsed() -> Iterator[Packet]:
        try:
            for chunk in itertools.chain(filter(None, chunks), [None]):
                for packet in parser.parse(None if chunk is None else bytes(chunk)):
                    if packet.size:
                        yield Packet(bytes(packet), None, None, 1, packet.is_keyframe)
        except (av.FFmpegError, OSError) as error:
            raise UnreadableInput(f"cannot be read on: {read_error(error)}", name=name) from None

    packets = parsed()
    first = next(packets, None)
    if first is None:
        raise UnreadableInput(f"there is no picture of {codec} in it", name=name)
    step = 1 / Fraction(fps).limit_denominator(100_000)
    format = Open(codec=codec, width=parser.width, height=parser.height, time_base=step, fps=fps)
    return format, itertools.chain([first], packets)
