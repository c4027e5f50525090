"""Decodes a stream of packets on the CPU while it comes, with PyAV (FFmpeg), to the pixels of a definition.

Unlike a file, a stream is not known as a whole and may be damaged anywhere: what can be shown is shown, and what was
concealed is counted. The pixels of an undamaged stream are, bit by bit, those of ``ClipMaker``.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol

import av
import numpy as np
import numpy.typing as npt
from av.packet import Packet as AvPacket
from av.video.codeccontext import VideoCodecContext

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.video.clips.probe import CODECS
from onestream.preprocess.video.common.color import (
    RANGE_TAGS,
    UNSPECIFIED,
    ColorRule,
    Colors,
    Pixels,
    Planes,
    planes_of,
    resolved,
    to_rgb,
)
from onestream.preprocess.video.common.orientation import Orientation, orientation_of
from onestream.preprocess.video.common.picture import PictureMaker
from onestream.preprocess.video.common.times import MOST_TIME, Times, valid_time
from onestream.preprocess.video.common.units import PacketBounds
from onestream.preprocess.video.streams.sampling import Sampler, Sampling
from onestream.preprocess.video.streams.skipping import Skipper

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    from onestream.preprocess.cuda.device import DeviceArray
    from onestream.preprocess.video.gpu.surfaces import Surface
    from onestream.wire.video import Packet

_DECODERS = {"av1": "libdav1d"}
"""FFmpeg's decoder where it is not named like the codec: its own one for AV1 needs a GPU."""

_USUAL_FPS = 25
_MOST_REMEMBERED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFormat:
    """A container's description of its video.

    ``codec`` is FFmpeg's name, ``extradata`` the codec's own header (avcC, hvcC, …), empty for Annex B. ``orientation``
    is how frames are turned to be shown; without one, a display orientation within the stream is followed.
    ``width``, ``height`` and ``fps`` are 0 where nothing is declared. ``matrix_tag``, ``transfer_tag`` (H.273) and
    ``full_range`` (None where it says nothing) are the container's; what the stream itself says goes before.
    ``reorder_depth`` is how many frames the decoder holds back to put them in order, where that was found out already;
    without it, H.264 that does not state it holds back as many as its level allows.
    """

    codec: str
    time_base: Fraction
    extradata: bytes = b""
    orientation: Orientation = field(default_factory=Orientation)
    width: int = 0
    height: int = 0
    fps: float = 0.0
    matrix_tag: int = UNSPECIFIED
    full_range: bool | None = None
    transfer_tag: int = UNSPECIFIED
    reorder_depth: int | None = None


@dataclass(slots=True)
class StreamFrame:
    """A frame that the sampling takes.

    ``index`` is its number from 0 in the order of display, counting every frame. ``pts`` is when it is shown in the
    stream's time base, ``pts_seconds`` in seconds, after every frame before it (``wire.clock``); None where the stream
    gives no time. ``source_pts`` is its packet's, as it came. ``pixels`` are (height, width, channels) uint8 as
    ``definition.pixels()`` says; on a GPU (``stream_gpu``) with a 1 before. ``size_hw`` is the whole picture's size as
    displayed, and ``orientation`` how the stored one is turned for that. ``colors`` are those by which it became RGB.
    """

    index: int
    pts: int | None
    pts_seconds: float | None
    source_pts: int | None
    pixels: npt.NDArray[np.uint8] | DeviceArray
    size_hw: Size
    orientation: Orientation
    colors: Colors
    _decoded: VideoFrame | None

    @property
    def surface(self) -> Surface | None:
        """The stored picture on a GPU, done and not turned; None where the CPU decoded it.

        Raises ``ValueError`` as ``planes`` does.
        """
        return None

    def planes(self) -> Planes:
        """The stored picture in YUV, not copied and not turned.

        Raises ``ValueError`` unless the decoder was made with ``pictures``.
        """
        if self._decoded is None:
            raise ValueError("the decoder keeps no pictures; make it with pictures=True")
        return planes_of(self._decoded)

    def picture(self) -> Pixels:
        """The whole picture as displayed, (height, width, 3) uint8 RGB. Raises ``ValueError`` as ``planes`` does."""
        colors = self.colors
        transfer: Literal["ignore", "sdr"] = "sdr" if colors.is_mapped else "ignore"
        rule = ColorRule(matrix=colors.matrix, range=colors.range, transfer=transfer)
        return self.orientation.turn(to_rgb(self.planes(), rule))


class PacketDecoder(Protocol):
    """Decodes a stream's packets: FFmpeg's decoder, or one that takes its place (``nvdec``).

    Pictures have ``pts``, ``duration``, ``key_frame``, ``is_corrupt``, ``height`` and ``width``.
    """

    @property
    def has_b_frames(self) -> bool:
        """Whether pictures may be shown in another order than that of their packets."""
        ...

    @property
    def height(self) -> int:
        """That of the newest picture, 0 before the first."""
        ...

    @property
    def width(self) -> int:
        """That of the newest picture, 0 before the first."""
        ...

    def decode(self, packet: AvPacket[Any] | None, /) -> list[Any]:
        """Pictures that are ready, in the order of display; None ends the stream. Raises ``av.FFmpegError``."""
        ...


class StreamDecoder:
    """Decodes one stream, packet by packet.

    ``threads``: FFmpeg's; more than one delays frames. With ``pictures`` every frame keeps its decoded picture, 3 MB at
    1080p, for ``StreamFrame.picture``.

    Counts so far: ``decoded`` frames that are shown, sampled or not; ``concealed``, those among them that the decoder
    marked as damaged, and packets that it could make nothing of; ``unshown`` packets before the first that can be
    shown, as where a stream is joined between keyframes. ``size_hw`` is the stored size of the newest frame, and
    ``colors`` are those of the newest frame that was taken; before the first those of the ``format``, or None where its
    tag cannot be converted.

    Raises ``BadSample`` for a codec, its header or a declared size that is not allowed, ``CannotCompile`` for a
    definition that ``PictureMaker`` refuses. An instance is not thread-safe.
    """

    def __init__(
        self,
        definition: Definition,
        format: StreamFormat,
        *,
        sampling: Sampling | None = None,
        color: ColorRule | None = None,
        limits: Limits | None = None,
        threads: int = 1,
        pictures: bool = False,
    ) -> None:
        if format.time_base <= 0:
            raise BadSample(f"the time base must be above 0, got {format.time_base}")
        self.decoded = self.concealed = self.unshown = 0
        self.size_hw: Size | None = None
        self._format, self._limits = format, limits or Limits()
        self._color, self._pictures = color or ColorRule(), pictures
        self.colors = self._declared_colors()
        self._check_size(format.height, format.width)
        self._bounds = PacketBounds(format.codec, format.extradata)
        self._maker = PictureMaker(definition, self._color, self._limits)
        self._sampler: Sampler[Shown] = Sampler(sampling or Sampling())
        self._context: PacketDecoder = open_decoder(format, self._limits, threads)
        skips = format.codec == "h264" and not (sampling or Sampling()).takes_all
        self._skipper = Skipper(self._sampler, format.time_base, format.extradata) if skips else None
        period_s = 1 / Fraction(format.fps if 0 < format.fps < 1000 else _USUAL_FPS)
        self._times = Times(period_s / format.time_base)
        self._orientation: Orientation | None = format.orientation if format.orientation != Orientation() else None
        self._oversized = 0
        self._hidden: set[int] = set()
        self._joined = self._over = False

    @property
    def done(self) -> bool:
        """Whether nothing will be taken of what may still come."""
        return self._over or self._sampler.done

    def feed(self, packet: Packet | None) -> list[StreamFrame]:
        """Frames that are ready after one more packet, in the order of display; None ends the stream.

        A frame comes out up to some packets after it went in: as many as the codec reorders, one more where the
        sampling is by time. Raises ``BadSample`` where frames are too large or of a kind that cannot be converted, or
        where a packet holds too much (``units``); the decoder cannot be used afterwards.
        """
        if self.done:
            return []
        try:
            taken = self._end() if packet is None else self._take(packet)
            return [self._made(shown) for shown in taken]
        except BaseException:
            self._over = True
            raise

    @property
    def _reorders(self) -> bool:
        return self._context.has_b_frames

    def _take(self, packet: Packet) -> list[Shown]:
        # To FFmpeg an empty packet would be the end.
        if not packet.data:
            return []
        self._bounds.check(packet.data)
        if self._skipper is None:
            packets = [packet]
        elif packet.is_discarded:
            packets = [*self._skipper.flush(), packet]
        else:
            packets = self._skipper.add(packet, reorders=self._reorders)
        return [shown for one in packets for shown in self._decode(one)]

    def _end(self) -> list[Shown]:
        waiting = self._skipper.flush() if self._skipper else []
        taken = [shown for packet in waiting for shown in self._decode(packet)]
        taken += self._decode(None)
        if self._oversized:
            raise BadSample(self._too_large())
        if self.decoded:
            taken += self._sampler.end(self._times.end * self._format.time_base)
        self._over = True
        return taken

    def _decode(self, packet: Packet | None) -> list[Shown]:
        if packet is not None and packet.is_discarded and packet.pts is not None:
            self._hidden.add(packet.pts)
            if len(self._hidden) > _MOST_REMEMBERED:
                self._hidden.remove(min(self._hidden))
        elif packet is not None:
            self._times.add(packet.pts, packet.dts, is_key=packet.is_key)
            self.unshown += not self.decoded
        try:
            frames = self._context.decode(None if packet is None else _to_av(packet, self._format.time_base))
        except av.FFmpegError as error:
            self._note_failure(packet, error)
            return []
        return [shown for frame in frames for shown in self._show(frame)]

    def _note_failure(self, packet: Packet | None, error: av.FFmpegError) -> None:
        if packet is None:
            return
        self._times.lost(packet.pts, packet.dts, is_key=packet.is_key)
        if self._skipper:
            self._skipper.lost(packet)
        self.concealed += self.decoded > 0
        # Of a frame beyond the limit, some decoders tell the size and some only that they refuse.
        size = self._context.height * self._context.width
        if size > self._limits.max_pixels or error.errno == errno.EINVAL:
            self._oversized += 1
            # One header may be damaged; two in a row, or the very first, are meant.
            if self._oversized > 1 or not self.decoded:
                raise BadSample(self._too_large())

    def _show(self, frame: Any) -> list[Shown]:
        # H.264's decoder itself waits for a keyframe or the end of a gradual refresh.
        if not self._joined and not frame.key_frame and self._format.codec != "h264":
            return []
        self._joined = True
        if frame.pts in self._hidden:
            self._hidden.discard(frame.pts)
            return []
        self._check_size(frame.height, frame.width)
        if not self.decoded:
            self.unshown = self._times.begin(frame.pts)
        self._oversized = 0
        self.size_hw = frame.height, frame.width
        pts, shown = self._times.of(frame.pts, frame.duration, reorders=self._reorders)
        index = self.decoded if self._skipper is None else self._skipper.number(frame.pts)
        self.decoded += 1
        self.concealed += frame.is_corrupt
        return self._sampler.add(index, shown * self._format.time_base, Shown(index, pts, frame))

    def _made(self, shown: Shown) -> StreamFrame:
        frame, pts = shown.frame, shown.pts
        try:
            if self._orientation is None:
                # It belongs to the stream, and is slow to ask for.
                self._orientation = orientation_of(frame)
            planes = planes_of(frame)
            pixels = self._maker.pixels(planes, self._orientation)
            self.colors = colors = self._colors_of(planes)
        except BadImage as error:
            raise BadSample(f"frame {shown.index}: {error.reason}") from None
        except ValueError as error:
            raise BadSample(f"frame {shown.index}: {error}") from None
        return StreamFrame(
            shown.index,
            pts,
            self._seconds(pts),
            frame.pts,
            pixels,
            self._orientation.displayed_size(planes.size_hw),
            self._orientation,
            colors,
            frame if self._pictures else None,
        )

    def _declared_colors(self) -> Colors | None:
        format = self._format
        try:
            return self._color.resolve(
                matrix_tag=format.matrix_tag, full_range=format.full_range, transfer_tag=format.transfer_tag
            )
        except ValueError:
            # The stream may say something else; if not, its first frame is refused.
            return None

    def _colors_of(self, planes: Planes) -> Colors:
        return resolved(planes, self._color)

    def _seconds(self, pts: int | None) -> float | None:
        return None if pts is None else float(pts * self._format.time_base)

    def _check_size(self, height: int, width: int) -> None:
        if height * width > self._limits.max_pixels:
            raise BadSample(
                f"frame {self.decoded}: has {width}x{height} = {height * width} pixels; "
                f"at most {self._limits.max_pixels} are allowed"
            )

    def _too_large(self) -> str:
        height, width = self._context.height, self._context.width
        known = height * width > self._limits.max_pixels
        size = f"has {width}x{height} pixels" if known else "is too large or has no valid size"
        return f"frame {self.decoded}: {size}; at most {self._limits.max_pixels} pixels are allowed"


@dataclass(slots=True)
class Shown:
    """A frame in the order of display, not converted yet, as its ``PacketDecoder`` gave it."""

    index: int
    pts: int | None
    frame: Any


def open_decoder(format: StreamFormat, limits: Limits, threads: int) -> VideoCodecContext:
    """FFmpeg's decoder for a stream. Raises ``BadSample`` for a codec, header or size that is not allowed."""
    if format.codec not in CODECS:
        raise BadSample(f"the stream is coded in {format.codec[:40]}; supported are {', '.join(CODECS)}")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    context = av.CodecContext.create(_DECODERS.get(format.codec, format.codec), "r")
    assert isinstance(context, VideoCodecContext)
    context.extradata = format.extradata or None
    context.thread_count, context.thread_type = threads, "AUTO"
    context.colorspace, context.color_range = format.matrix_tag, RANGE_TAGS[format.full_range]
    context.color_trc = format.transfer_tag
    # Decoders check a size with its sides rounded up; a frame's own size is checked when it comes out.
    options = {"max_pixels": str(2 * limits.max_pixels + 65536)}
    # PyAV 16, the last for Python 3.10, cannot be told the depth.
    if format.reorder_depth is not None and hasattr(context, "reorder_depth"):
        context.reorder_depth = min(max(format.reorder_depth, 0), 16)
    elif format.codec == "h264":
        options["strict"] = "1"
    context.options = options
    try:
        context.open(strict=False)
    except av.FFmpegError as error:
        if error.errno == errno.EINVAL:
            raise BadSample(f"frame 0: is too large; at most {limits.max_pixels} pixels are allowed") from None
        raise BadSample(f"the codec's header cannot be read: {error.strerror}") from None
    return context


def _to_av(packet: Packet, time_base: Fraction) -> AvPacket[Any]:
    converted: AvPacket[Any] = AvPacket(packet.data)
    converted.time_base = time_base
    converted.pts, converted.dts = valid_time(packet.pts), valid_time(packet.dts)
    converted.duration = packet.duration if 0 < packet.duration < MOST_TIME else 0
    converted.is_keyframe = packet.is_key
    return converted
