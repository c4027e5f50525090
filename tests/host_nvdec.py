"""PyNvVideoCodec made of FFmpeg and host memory: what its sources say of packets, order, formats and memory.

The module's variables say what this GPU lacks or does wrong.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections import deque
from enum import Enum, IntEnum
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from host_work import Allocation, Place, Queue, queue_of

_NATIVE_DELAY = 4
_POISON = 0x5A


class Codec(Enum):
    H264 = "h264"
    HEVC = "hevc"
    AV1 = "libdav1d"
    VP9 = "vp9"


class ChromaFormat(IntEnum):
    C420 = 1
    C422 = 2
    C444 = 3


class Latency(Enum):
    NATIVE = 0
    LOW = 1


class Flag(IntEnum):
    ENDOFPICTURE = 8


class PacketData:
    def __init__(self) -> None:
        # Of no use until they are set.
        self.bsl = self.bsl_data = self.pts = self.decode_flag = -1


class Frame:
    def __init__(self, memory: Allocation, format: str, pts: int) -> None:
        self._memory, self.format, self._pts = memory, types.SimpleNamespace(name=format), pts

    def getPTS(self) -> int:  # noqa: N802 (the library's name)
        return self._pts

    def GetPtrToPlane(self, plane: int) -> int:  # noqa: N802
        assert plane == 0
        return self._memory.pointer


class Decoder:
    """Gives pictures four later than it could, in memory that the next packet overwrites in the order of its stream."""

    def __init__(self, gpu: HostNvdec, codec: Codec, latency: Latency, queue: Queue) -> None:
        self._queue = queue
        self._gpu, self._delay = gpu, _NATIVE_DELAY if latency is Latency.NATIVE else 0
        self._context: Any = av.CodecContext.create(codec.value, "r")
        self._context.thread_count = 1
        if codec is Codec.H264:
            self._context.options = {"strict": "1"}
        self._waiting: deque[tuple[Any, int]] = deque()
        self._skips = codec is Codec.HEVC
        self._times: list[int] = []
        """Of the first packet of HEVC and those after it that are shown before."""
        self._memory: list[Allocation] = []
        self._size: tuple[int, int] | None = None
        self._frame_bytes = 0
        gpu.made += 1
        gpu.alive += 1

    def __del__(self) -> None:
        self._gpu.alive -= 1

    def Decode(self, packet: PacketData) -> list[Frame]:  # noqa: N802
        self._gpu.packets += 1
        if self._gpu.packets == self._gpu.fails_at:
            raise RuntimeError("NVDEC : an error\nat a line")
        for memory in self._memory:
            self._write(memory, np.full(memory.size, _POISON, np.uint8))
        pictures = [] if self._gpu.shows_nothing else self._pictures(packet)
        times = [-(1 << 63) if picture.pts is None else picture.pts for picture in pictures]
        if times and self._times:
            # It skips what the first picture of a joined stream makes undecodable, and gives it the last one's time.
            times[0], self._times, self._skips = self._times[-1], [], False
        self._waiting.extend(zip(pictures, times, strict=True))
        if pictures and self._gpu.packets >= self._gpu.doubles_at:
            # Its parser finds a second picture in a damaged packet, and counts on.
            self._gpu.doubles_at = sys.maxsize
            self._waiting.append((pictures[-1], times[-1] + 1))
        keep = self._delay if packet.bsl else 0
        ready = [self._waiting.popleft() for _ in range(len(self._waiting) - keep)]
        return [self._frame(at, *one) for at, one in enumerate(ready)]

    def GetFrameSize(self) -> int:  # noqa: N802
        return self._frame_bytes

    def _pictures(self, packet: PacketData) -> list[Any]:
        coded: Any = None
        if packet.bsl:
            coded = av.Packet(ctypes.string_at(packet.bsl_data, packet.bsl))
            coded.pts = None if packet.pts == -(1 << 63) else packet.pts
            self._skips = self._skips and (not self._times or packet.pts < self._times[0])
            if self._skips:
                self._times.append(packet.pts)
            if self._delay == 0:
                assert packet.decode_flag == Flag.ENDOFPICTURE
        else:
            assert packet.bsl_data == 0
        try:
            found: list[Any] = self._context.decode(coded)
        except av.FFmpegError:
            # It conceals in silence.
            return []
        return found

    def _frame(self, at: int, picture: Any, time: int) -> Frame:
        size = picture.height, picture.width
        assert self._size in (None, size), "NVDEC scales what changes its size"
        self._size = size
        samples, name = _stored(picture, left=self._gpu.crops_left)
        self._frame_bytes = samples.nbytes
        if at == len(self._memory):
            self._memory.append(self._queue.allocate(samples.nbytes))
        self._write(self._memory[at], samples.view(np.uint8))
        return Frame(self._memory[at], name, time)

    def _write(self, memory: Allocation, samples: npt.NDArray[np.uint8]) -> None:
        place = Place(memory.pointer, samples.shape, samples.dtype)
        self._queue.put(lambda: np.copyto(place.values(), samples), name="nvdec")


def _stored(picture: Any, *, left: int) -> tuple[npt.NDArray[Any], str]:
    """As NVDEC writes it, flat, and PyNvVideoCodec's name of the format."""
    planes = [np.array(plane) for plane in _arrays(picture)]
    if left:
        planes[0] = np.roll(planes[0], left, axis=1)
    deep = planes[0].dtype == np.uint16
    if deep:
        planes = [plane << 6 for plane in planes]
    y, u, v = planes
    if u.shape == y.shape:
        return np.concatenate([plane.ravel() for plane in planes]), "YUV444_16Bit" if deep else "YUV444"
    even = np.pad(y, ((0, 0), (0, y.shape[1] & 1)))
    return np.concatenate([even.ravel(), np.stack([u, v], axis=2).ravel()]), "P016" if deep else "NV12"


def _arrays(picture: Any) -> list[npt.NDArray[Any]]:
    kind = np.uint16 if "10le" in picture.format.name else np.uint8
    return [
        np.frombuffer(memoryview(plane), kind)
        .reshape(plane.height, plane.line_size // np.dtype(kind).itemsize)[:, : plane.width]
        for plane in picture.planes
    ]  # fmt: skip


class HostNvdec(types.ModuleType):
    """The module. ``lacks``: names of codecs that this GPU cannot decode."""

    def __init__(self) -> None:
        super().__init__("PyNvVideoCodec")
        self.made = self.alive = self.packets = 0
        self.lacks: set[Codec] = set()
        self.fails_at: int | None = None
        self.shows_nothing = False
        self.crops_left = 0
        self.doubles_at = sys.maxsize
        self.cudaVideoCodec, self.cudaVideoChromaFormat = Codec, ChromaFormat
        self.DisplayDecodeLatencyType, self.VideoPacketFlag, self.PacketData = Latency, Flag, PacketData

    def GetDecoderCaps(  # noqa: N802
        self, *, gpuid: int, codec: Codec, chromaformat: ChromaFormat, bitdepth: int
    ) -> dict[str, int]:
        assert gpuid == 0
        assert chromaformat in (ChromaFormat.C420, ChromaFormat.C444)
        assert bitdepth in (8, 10)
        return {"supported": int(codec not in self.lacks)}

    def CreateDecoder(  # noqa: N802
        self, *, gpuid: int, codec: Codec, cudastream: int, usedevicememory: bool, latency: Latency
    ) -> Decoder:
        assert (gpuid, usedevicememory) == (0, True)
        return Decoder(self, codec, latency, queue_of(cudastream))


def install() -> HostNvdec:
    """Put it in the place of PyNvVideoCodec."""
    module = HostNvdec()
    sys.modules["PyNvVideoCodec"] = module
    return module
