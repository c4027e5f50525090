"""NVDEC in the place of FFmpeg's decoder, by PyNvVideoCodec: packets in, surfaces on a GPU out.

PyNvVideoCodec says neither the colours of a stream nor which pictures were damaged, scales what changes its size,
crops only at the right and at the bottom, and deinterlaces. So every sequence begins on both: FFmpeg decodes its first
picture alone, which tells size, format and colours before NVDEC allocates anything, and NVDEC's first surface must
equal it in every bit. What cannot be decoded exactly, or not at all, FFmpeg decodes from that packet on, and nothing is
lost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import av
import numpy as np
from av.packet import Packet as AvPacket
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from onestream.preprocess.cuda.device import INSTALL_GPU, DeviceArray, Stream
from onestream.preprocess.errors import BackendMissing
from onestream.preprocess.video.common.color import ColorRule, Planes, planes_of
from onestream.preprocess.video.common.orientation import Orientation, orientation_of
from onestream.preprocess.video.gpu.annexb import ByteStream
from onestream.preprocess.video.gpu.surfaces import LAYOUTS, Layout, Surface
from onestream.wire.plain_text import first_line

try:
    import PyNvVideoCodec as nvc  # noqa: N813 (NVIDIA's samples call it so)
except Exception as error:  # without a driver it raises RuntimeError
    raise BackendMissing(
        f"decoding video on a GPU needs PyNvVideoCodec and a driver with NVDEC: {INSTALL_GPU} ({first_line(error)})"
    ) from error

CODECS = {
    "h264": nvc.cudaVideoCodec.H264,
    "hevc": nvc.cudaVideoCodec.HEVC,
    "av1": nvc.cudaVideoCodec.AV1,
    "vp9": nvc.cudaVideoCodec.VP9,
}
"""By FFmpeg's names. Their standards define every bit; the inverse transforms of MPEG-4 and JPEG may differ between
decoders, and VP8 packs hidden pictures that cannot be told from lost ones: those stay on the CPU."""

_CHROMA = {(1, 1): 1, (0, 0): 3}
"""cuvid's number of a subsampling (cudaVideoChromaFormat in cuviddec.h)."""
_NO_TIME = -(1 << 63)
"""What PyNvVideoCodec's demuxer gives where a container says nothing (AV_NOPTS_VALUE)."""
_MOST_DELAYED = 24
"""Pictures inside NVDEC at most: H.264 and HEVC reorder 16, and PyNvVideoCodec shows four later."""


class _Refused(Exception):
    """Why a sequence is not decoded by NVDEC, in words that follow its name."""


class SurfaceDecoder:
    """Decodes one stream on a GPU as long as that is exact, else on the CPU (a ``stream.PacketDecoder``).

    ``open_on_cpu`` opens FFmpeg's decoder of the stream; ``check_size(height, width)`` raises where a picture is too
    large; HDR that ``color`` maps is left to the CPU; ``log`` is told when and why the CPU takes over. ``lost`` counts
    packets that showed nothing. Pictures are a ``Surface`` or, from the CPU, a ``VideoFrame``. Everything is queued on
    ``stream``, whose device is current.
    """

    def __init__(
        self,
        codec: str,
        extradata: bytes,
        stream: Stream,
        *,
        open_on_cpu: Callable[[], VideoCodecContext],
        check_size: Callable[[int, int], None],
        color: ColorRule,
        log: Callable[[str], None],
    ) -> None:
        self.lost = 0
        self.reason: str | None = None
        self._codec, self._stream = codec, stream
        self._open_on_cpu, self._check_size, self._color, self._log = open_on_cpu, check_size, color, log
        self._bytes = ByteStream(codec, extradata)
        # FFmpeg's: the newest that read a sequence, the newest that was asked to, and one for what comes before.
        self._described = self._asked = self._early = open_on_cpu()
        self._on_cpu = False
        self._sequence: _Sequence | None = None
        self._sets = b""
        # Packets since a sequence began, until its first surface was compared.
        self._unproven: list[AvPacket[Any]] = []
        self._waits_for_key = False
        self._ready: list[Surface | VideoFrame] = []
        if codec not in CODECS:
            self._hand_over(f"{codec} is not decoded on a GPU", self._early)

    @property
    def has_b_frames(self) -> bool:
        """Whether pictures may be shown in another order than that of their packets."""
        return self._described.has_b_frames

    @property
    def height(self) -> int:
        """That of the newest picture that FFmpeg looked at, 0 before the first."""
        return self._asked.height

    @property
    def width(self) -> int:
        """That of the newest picture that FFmpeg looked at, 0 before the first."""
        return self._asked.width

    def decode(self, packet: AvPacket[Any] | None, /) -> list[Surface | VideoFrame]:
        """Pictures that are ready, in the order of display; None ends the stream.

        Raises ``av.FFmpegError`` for a packet that cannot be decoded.
        """
        if self._on_cpu:
            self._decode_on_cpu(packet)
        else:
            try:
                if packet is not None:
                    self._decode_on_gpu(packet)
                elif self._sequence is None:
                    self._wait(None)
                else:
                    self._finish()
            except _Refused as refused:
                self._take_over(packet, str(refused))
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Free the decoder on the GPU. Nothing can be decoded afterwards."""
        self._sequence = None

    def _decode_on_gpu(self, packet: AvPacket[Any]) -> None:
        data = self._bytes.convert(bytes(packet))
        sets = self._bytes.sequence_sets(data)
        begins = sets not in (b"", self._sets)
        if self._sequence is None or self._codec in ("av1", "vp9"):
            begins = begins or packet.is_keyframe or self._bytes.is_key(data)
        if begins and self._begin(packet):
            # Parameter sets that the container keeps apart.
            data = data if sets else self._bytes.headers + data
        self._sets = sets or self._sets
        if self._sequence is None:
            self._wait(packet)
            return
        if self._unproven and packet is not self._unproven[-1]:
            self._unproven.append(packet)
        self._take(self._sequence.decode(data, packet.pts, packet.duration or 0))

    def _wait(self, packet: AvPacket[Any] | None) -> None:
        """Before the first keyframe FFmpeg may show H.264 that is refreshed bit by bit."""
        if self._codec != "h264":
            return
        pictures = self._early.decode(packet)
        if pictures:
            self._hand_over("it begins without a keyframe", self._early)
            self._ready += pictures

    def _begin(self, packet: AvPacket[Any]) -> bool:
        """Look at a packet that may begin a sequence; begin one, and say so, where it differs from the one before."""
        self._asked = self._open_on_cpu()
        pictures = [*self._asked.decode(packet), *self._asked.decode(None)]
        self._described = self._asked
        if not pictures and self._sequence is None:
            return False
        try:
            if not pictures:
                raise _Refused("what follows a change of the stream shows nothing by itself")
            self._check_size(pictures[0].height, pictures[0].width)
            known = _Known(pictures[0])
            if self._color.mapped(known.like.transfer_tag):
                raise _Refused("HDR is mapped to SDR on the CPU")
        except _Refused:
            self._finish()
            self._unproven = [packet]
            raise
        if self._sequence is not None and self._sequence.known.agrees_with(known):
            return False
        self._finish()
        self._unproven = [packet]
        self._sequence = _Sequence(self._codec, known, packet.pts, self._stream, reorders=self._described.has_b_frames)
        return True

    def _finish(self) -> None:
        """Take what is left in NVDEC, and free it."""
        if self._sequence is None:
            return
        self._take(self._sequence.end())
        if self._unproven:
            raise _Refused("NVDEC shows nothing")
        self.lost += self._sequence.missing
        self._sequence = None

    def _take(self, surfaces: list[Surface]) -> None:
        sequence = self._sequence
        assert sequence is not None
        if surfaces and self._unproven:
            sequence.known.compare(surfaces[0], self._stream)
            self._unproven = []
        if len(self._unproven) > _MOST_DELAYED:
            raise _Refused(f"NVDEC shows nothing of {len(self._unproven)} packets")
        if not self._unproven:
            self.lost += sequence.write_off(_MOST_DELAYED)
        self._ready += surfaces

    def _take_over(self, packet: AvPacket[Any] | None, reason: str) -> None:
        """Go on with FFmpeg, from the packet at which the sequence began where nothing of it was shown yet."""
        again, self._unproven = self._unproven, []
        if not again and self._sequence is not None:
            self.lost += self._sequence.missing
            self._waits_for_key = True
        self._hand_over(reason, self._open_on_cpu())
        if packet is not None and not (again and packet is again[-1]):
            again.append(packet)
        for one in again:
            try:
                self._decode_on_cpu(one)
            except av.FFmpegError:
                if one is packet:
                    raise
                self.lost += 1
        if packet is None:
            self._decode_on_cpu(None)

    def _hand_over(self, reason: str, decoder: VideoCodecContext) -> None:
        self.reason, self._sequence, self._on_cpu = reason, None, True
        self._described = self._asked = decoder
        self._log(f"a stream is decoded on the CPU: {reason}")

    def _decode_on_cpu(self, packet: AvPacket[Any] | None) -> None:
        if self._waits_for_key and packet is not None:
            self._waits_for_key = not (packet.is_keyframe or self._bytes.is_key(self._bytes.convert(bytes(packet))))
            if self._waits_for_key:
                self.lost += 1
                return
        self._ready += self._described.decode(packet)


class _Known:
    """The facts that FFmpeg's picture tells of a sequence, with its samples for one comparison."""

    def __init__(self, picture: VideoFrame) -> None:
        if picture.interlaced_frame:
            raise _Refused("NVDEC would deinterlace it")
        try:
            planes = planes_of(picture)
            self.orientation: Orientation = orientation_of(picture)
        except ValueError as error:
            raise _Refused(f"its first picture {error}") from None
        layout = LAYOUTS.get((planes.shifts, planes.depth))
        if layout is None:
            raise _Refused(f"pictures in {picture.format.name} are not decoded on a GPU")
        self.layout: Layout = layout
        self._planes: Planes | None = planes
        nothing = np.empty((0, 0), planes.y.dtype)
        self.like = replace(planes, y=nothing, u=nothing, v=nothing)

    def agrees_with(self, other: _Known) -> bool:
        """Whether nothing changed that surfaces are read by."""
        return self._facts == other._facts

    @property
    def _facts(self) -> tuple[object, ...]:
        like = self.like
        return like.size_hw, like.shifts, like.depth, like.matrix_tag, like.full_range, self.orientation

    def compare(self, surface: Surface, stream: Stream) -> None:
        """Raise ``_Refused`` unless a surface equals the picture; forget the picture."""
        planes, self._planes = self._planes, None
        assert planes is not None
        other = surface.to_host(stream)
        height, width = planes.size_hw
        down, across = (1 << shift for shift in planes.shifts)
        chroma = (height + down - 1) // down, (width + across - 1) // across
        for name, (rows, columns) in (("y", (height, width)), ("u", chroma), ("v", chroma)):
            ours, theirs = getattr(planes, name), getattr(other, name)
            if not np.array_equal(ours[:rows, :columns], theirs[:rows, :columns]):
                raise _Refused(f"NVDEC's first picture differs from FFmpeg's in {name.upper()}")


class _Sequence:
    """One decoder of PyNvVideoCodec, for pictures of one size and format.

    Surfaces are copied at once: PyNvVideoCodec writes into the same memory at the next packet, and whether a frame is
    wanted may be known only then.
    """

    def __init__(self, codec: str, known: _Known, first_pts: int | None, stream: Stream, *, reorders: bool) -> None:
        self.known = known
        self._fed = self._shown = 0
        self._codec, self._stream, self._first_pts = codec, stream, first_pts
        layout = known.layout
        chroma = nvc.cudaVideoChromaFormat(_CHROMA[layout.shifts])
        # Packets are pictures in the order of display: none has to wait for the next.
        self._at_once = codec in ("h264", "hevc") and not reorders
        latencies = nvc.DisplayDecodeLatencyType
        try:
            if not _supported(stream.device.index, codec, chroma, layout.depth):
                raise _Refused(f"this GPU does not decode {codec} with {layout.depth} bit as {layout.format}")
            self._decoder = nvc.CreateDecoder(
                gpuid=stream.device.index,
                codec=CODECS[codec],
                cudastream=stream.handle,
                usedevicememory=True,
                latency=latencies.LOW if self._at_once else latencies.NATIVE,
            )
        except _Refused:
            raise
        except Exception as error:  # PyNvVideoCodec's own errors, and any other, mean the same here
            raise _Refused(f"NVDEC cannot be opened: {first_line(error)}") from None
        self._durations: dict[int, int] = {}
        self._all_timed = True

    @property
    def missing(self) -> int:
        """Packets that showed nothing so far."""
        return max(0, self._fed - self._shown)

    def write_off(self, most: int) -> int:
        """Take packets beyond the ``most`` that may still be inside for lost, and say how many."""
        lost = max(0, self.missing - most)
        self._shown += lost
        return lost

    def decode(self, data: bytes, pts: int | None, duration: int) -> list[Surface]:
        """Surfaces that are ready after one more packet."""
        if (precedes := self._precedes(pts)) and self._codec == "hevc":
            # NVDEC skips such pictures by itself, and gives the keyframe the time of the last one that it skipped.
            return []
        packet = nvc.PacketData()
        memory = ctypes.create_string_buffer(data, len(data))
        packet.bsl_data, packet.bsl = ctypes.addressof(memory), len(data)
        packet.pts = _NO_TIME if pts is None else pts
        packet.decode_flag = int(nvc.VideoPacketFlag.ENDOFPICTURE) if self._at_once else 0
        self._all_timed &= pts is not None
        if pts is not None:
            self._durations[pts] = duration
            if len(self._durations) > 4 * _MOST_DELAYED:
                del self._durations[next(iter(self._durations))]
        surfaces = self._decode(packet)
        self._fed += not precedes
        return surfaces

    def end(self) -> list[Surface]:
        """Surfaces that are left."""
        packet = nvc.PacketData()
        packet.bsl = packet.bsl_data = packet.pts = packet.decode_flag = 0
        return self._decode(packet)

    def _precedes(self, pts: int | None) -> bool:
        """Whether a picture is shown before the first keyframe: it refers to what is missing."""
        return pts is not None and self._first_pts is not None and pts < self._first_pts

    def _invented(self, pts: int | None) -> bool:
        """Whether no packet has this time: NVDEC's parser finds two pictures in one damaged packet, and counts on."""
        return pts is not None and self._all_timed and pts not in self._durations

    def _decode(self, packet: nvc.PacketData) -> list[Surface]:
        try:
            frames = self._decoder.Decode(packet)
            return [surface for frame in frames for surface in self._kept(frame)]
        except _Refused:
            raise
        except Exception as error:  # as above
            raise _Refused(f"NVDEC refuses it: {first_line(error)}") from None

    def _kept(self, frame: nvc.DecodedFrame) -> list[Surface]:
        pts = None if frame.getPTS() == _NO_TIME else frame.getPTS()
        if self._precedes(pts) or self._invented(pts):
            return []
        self._shown += 1
        self._first_pts = None
        layout, like = self.known.layout, self.known.like
        size = layout.planes(like.size_hw)[-1]
        if frame.format.name != layout.format or self._decoder.GetFrameSize() != size:
            raise _Refused(f"NVDEC gives {self._decoder.GetFrameSize()} bytes in {frame.format.name}")
        memory = self._stream.allocate((size,), np.uint8)
        there = DeviceArray(frame.GetPtrToPlane(0), (size,), memory.dtype, self._stream.handle, frame)
        self._stream.copy(there, memory)
        duration = 0 if pts is None else self._durations.pop(pts, 0)
        return [
            Surface(
                memory=memory, layout=layout, like=like, orientation=self.known.orientation, pts=pts, duration=duration
            )
        ]


_SUPPORTED: dict[tuple[int, str, int, int], bool] = {}


def _supported(gpu: int, codec: str, chroma: nvc.cudaVideoChromaFormat, depth: int) -> bool:
    """Whether NVDEC has this, asked once: PyNvVideoCodec makes a CUDA context for the answer."""
    key = gpu, codec, int(chroma), depth
    if key not in _SUPPORTED:
        capabilities = nvc.GetDecoderCaps(gpuid=gpu, codec=CODECS[codec], chromaformat=chroma, bitdepth=depth)
        _SUPPORTED[key] = bool(capabilities.get("supported", 1))
    return _SUPPORTED[key]
