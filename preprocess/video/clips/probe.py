"""Probes a video file: every frame and its time, read from its packets and not from its header.

Containers that store presentation times (MP4, Matroska, MPEG-TS, FLV) are indexed without decoding. Others (AVI, raw
streams) do not say in which order their frames are shown, nor do those whose clock goes back (clips that were joined),
so that they are decoded once. Their times are those of a stream, by the same code (``common.times``).
"""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadSample
from onestream.preprocess.video.clips.choose_frames import Timeline
from onestream.preprocess.video.common.times import Times
from onestream.wire.truncation import truncation

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

VideoSource = str | os.PathLike[str] | bytes
"""A file's path, or its content."""

CODECS = ("h264", "hevc", "av1", "vp8", "vp9", "mjpeg", "mpeg4")
"""What is decoded, by FFmpeg's names."""

_FORMATS = "mov,matroska,webm,mpegts,flv,avi,h264,hevc,ivf,obu,m4v,mjpeg"
"""Containers that FFmpeg may open. Playlists and lists of files, which lead to other files, are not among them."""

_STORES_PTS = {"mov", "matroska", "mpegts", "flv"}
_SHOWN_AS_STORED = {"mjpeg"}
_USUAL_FPS = 25


@dataclass(frozen=True, slots=True)
class Index:
    """The frames of a video.

    ``timeline`` holds them in the order in which they are shown. ``numbers`` and ``is_key`` follow the packets in the
    order in which they are stored: the number of the frame in each, -1 where a packet shows none, and whether decoding
    can start there. Both are empty where the frames were counted by decoding, and every read starts at the beginning.
    """

    timeline: Timeline
    numbers: npt.NDArray[np.int64]
    is_key: npt.NDArray[np.bool_]

    @property
    def by_packets(self) -> bool:
        """Whether packets tell their frames."""
        return len(self.numbers) > 0


def open_video(source: VideoSource, name: str, *, threads: int) -> tuple[InputContainer, VideoStream]:
    """Open the first video stream for decoding with ``threads`` threads, errors not concealed.

    Raises ``BadSample`` where there is no such file or stream.
    """
    # As "file:", a path cannot name another protocol.
    file = io.BytesIO(source) if isinstance(source, bytes) else f"file:{os.fspath(source)}"
    try:
        container = av.open(file, mode="r", metadata_errors="replace", options={"format_whitelist": _FORMATS})
    except av.FFmpegError as error:
        raise BadSample(f"{name}: the video cannot be opened: {error.strerror}") from None
    except OSError as error:
        raise BadSample(f"{name}: the file cannot be read: {error.strerror or error}") from None
    pictures = av.stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & pictures]
    # A stream whose codec FFmpeg does not know has no context.
    if not streams or streams[0].codec_context is None:
        container.close()
        raise BadSample(f"{name}: the file holds no video that can be decoded")
    stream = streams[0]
    codec = stream.codec_context.codec.canonical_name
    if codec not in CODECS:
        container.close()
        raise BadSample(f"{name}: the video is coded in {codec}; supported are {', '.join(CODECS)}")
    stream.codec_context.thread_count = threads
    stream.codec_context.thread_type = "AUTO"
    stream.codec_context.options = {"err_detect": "explode"}
    return container, stream


def packets_of(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """The packets of a stream from where the container stands, and an empty one at the end.

    Raises ``av.FFmpegError`` or ``OSError``.
    """
    try:
        yield from container.demux(stream)
    except IndexError:
        # PyAV's answer to a stream that was not there when the file was opened.
        raise OSError(errno.EINVAL, "another stream begins within the file") from None


def index_of(source: VideoSource, name: str, *, threads: int) -> Index:
    """Read all packets of a video. Raises ``BadSample`` naming the frame where the file is cut or damaged."""
    container, stream = open_video(source, name, threads=threads)
    with container:
        kinds = set(container.format.name.split(","))
        if not kinds & _STORES_PTS and stream.codec_context.name not in _SHOWN_AS_STORED:
            return _by_decoding(container, stream, source, name)
        packets = _read_packets(container, stream, name)
        shown = sum(packet.shows for packet in packets)
        last_incomplete = bool(packets) and packets[-1].is_corrupt
        _check_whole(source, name, packets=len(packets), frames=shown, last_incomplete=last_incomplete)
        times = [packet.pts for packet in packets if packet.shows]
        if None in times or len(set(times)) != len(times) or _is_set_back(packets):
            container.close()
            again, stream = open_video(source, name, threads=threads)
            with again:
                return _by_decoding(again, stream, source, name)
        return _by_packets(packets, stream, name)


@dataclass(frozen=True, slots=True)
class _Packet:
    pts: int | None
    dts: int | None
    duration: int
    is_key: bool
    shows: bool
    is_corrupt: bool


def _read_packets(container: InputContainer, stream: VideoStream, name: str) -> list[_Packet]:
    found: list[_Packet] = []
    is_vp8 = stream.codec_context.name in ("vp8", "libvpx")
    try:
        for packet in packets_of(container, stream):
            if packet.size:
                shows = not packet.is_discard and not (is_vp8 and _is_hidden_vp8(packet))
                times = packet.pts, packet.dts, packet.duration or 0
                found.append(_Packet(*times, packet.is_keyframe, shows, packet.is_corrupt))
    except (av.FFmpegError, OSError) as error:
        raise BadSample(f"{name}: frame {len(found)}: the file cannot be read on: {error.strerror}") from None
    return found


def _is_set_back(packets: list[_Packet]) -> bool:
    """Whether the clock goes back between two packets, so that times do not tell the order."""
    known = [packet.dts for packet in packets if packet.dts is not None]
    return any(later < earlier for earlier, later in pairwise(known))


def _is_hidden_vp8(packet: Packet[Any]) -> bool:
    """Bit 4 of a VP8 frame is show_frame (RFC 6386, 9.1); other frames only serve as references."""
    return not bytes(packet)[0] & 0x10


def _by_packets(packets: list[_Packet], stream: VideoStream, name: str) -> Index:
    shown = sorted((packet.pts, packet.duration) for packet in packets if packet.shows and packet.pts is not None)
    number = {pts: place for place, (pts, _) in enumerate(shown)}
    for packet in packets:
        if packet.is_corrupt and packet.pts is not None:
            raise BadSample(f"{name}: frame {number.get(packet.pts, 0)}: the file is cut or damaged there")
    timeline = _timeline(name, [pts for pts, _ in shown], shown[-1][1] if shown else 0, stream)
    return Index(
        timeline,
        np.array([number[packet.pts] if packet.shows and packet.pts is not None else -1 for packet in packets]),
        np.array([packet.is_key for packet in packets]),
    )


def _by_decoding(container: InputContainer, stream: VideoStream, source: VideoSource, name: str) -> Index:
    rate = Fraction(stream.average_rate or _USUAL_FPS)
    time_base = stream.time_base or 1 / rate
    times = Times(1 / rate / time_base)
    shown: list[int] = []
    packets = 0
    has_times = last_incomplete = False
    failure: str | None = None
    try:
        for packet in packets_of(container, stream):
            if packet.size:
                packets, last_incomplete = packets + 1, packet.is_corrupt
                if not packet.is_discard:
                    times.add(packet.pts, packet.dts, is_key=packet.is_keyframe)
            for frame in packet.decode():
                if not shown:
                    times.begin(frame.pts)
                pts, time = times.of(frame.pts, frame.duration, reorders=stream.codec_context.has_b_frames)
                has_times = has_times or pts is not None
                shown.append(math.floor(time))
    except (av.FFmpegError, OSError) as error:
        failure = error.strerror
    _check_whole(source, name, packets=packets, frames=len(shown), last_incomplete=last_incomplete)
    if failure is not None:
        raise BadSample(f"{name}: frame {len(shown)} or one soon after it: cannot be decoded: {failure}")
    duration = math.ceil(times.end) - shown[-1] if shown else 0
    if not has_times:
        # The frames come at the stream's mean rate, which its time base need not express.
        time_base, shown, duration = 1 / rate, list(range(len(shown))), 1
    none = np.empty(0, np.int64)
    return Index(_timeline(name, shown, duration, stream, time_base), none, none.astype(np.bool_))


def _timeline(
    name: str, times: list[int], last_duration: int, stream: VideoStream, time_base: Fraction | None = None
) -> Timeline:
    if not times:
        raise BadSample(f"{name}: the video holds no frame")
    # A container that stores no durations: the last frame is shown as long as the one before it.
    last = last_duration or (times[-1] - times[-2] if len(times) > 1 else 1)
    base = time_base or stream.time_base
    assert base is not None
    return Timeline(np.array(times, np.int64), times[-1] + last, Fraction(base))


def _check_whole(source: VideoSource, name: str, *, packets: int, frames: int, last_incomplete: bool) -> None:
    """Raise ``BadSample`` where a file ends before its container says: FFmpeg itself takes that as a normal end."""
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as content:
        cut = truncation(content, packets=packets, last_incomplete=last_incomplete)
    if cut is not None:
        raise BadSample(f"{name}: frame {max(frames - last_incomplete, 0)}: {cut}")
