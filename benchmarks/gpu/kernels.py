"""``python -m benchmarks.gpu.kernels``: GB/s of each kernel beside that of a device copy, each figure kept at once.

Bytes are those that must move: every sample read once, every sample written once. Pictures are noise, and so many that
they do not fit into the L2 cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.gpu.points import Points, no_gpu, parser
from onestream.preprocess import Resize
from onestream.preprocess.cuda.device import DeviceArray, Stream, open_device
from onestream.preprocess.cuda.source_kernels import YuvFormat
from onestream.preprocess.errors import PreprocessError
from onestream.preprocess.geometry import Window
from onestream.preprocess.operations import Filter
from onestream.preprocess.plan import Plan

KERNELS = ("copy", "resize bilinear", "resize bicubic", "resize of video", "look-up", "rectify")
SIZES = ("500x375", "1920x1080", "4000x3000")
_TARGET = (224, 224)
_MOST_PICTURES = 512
_REPEATS, _ROUNDS = 5, 5
_DEGREES = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is queued for all pictures at once, and the bytes that it must move."""

    enqueue: Callable[[], object]
    moved: int


class Pictures:
    """``sources`` (pictures, height, width, 3) uint8 of noise on the GPU, at least ``megabytes`` of them."""

    def __init__(self, stream: Stream, size: str, *, megabytes: float) -> None:
        width, height = map(int, size.split("x"))
        self.stream, self.size_hw = stream, (height, width)
        self.count = min(_MOST_PICTURES, math.ceil(megabytes * 1e6 / (3 * width * height)))
        self.sources = stream.allocate((self.count, height, width, 3), np.uint8)
        noise = stream.pinned((height, width, 3), np.uint8)
        noise[...] = np.random.default_rng(0).integers(0, 256, noise.shape, np.uint8)
        for at in range(self.count):
            stream.upload(noise, self.sources.at(at))
        stream.sync()

    def case(self, kernel: str) -> Case:
        """One of ``KERNELS``."""
        made: dict[str, Callable[[], Case]] = {
            "copy": self._copy,
            "resize bilinear": partial(self._resize, "bilinear"),
            "resize bicubic": partial(self._resize, "bicubic"),
            "resize of video": partial(self._resize, "bilinear", video=True),
            "look-up": self._look_up,
            "rectify": self._rectify,
        }
        return made[kernel]()

    def _copy(self) -> Case:
        target = self.stream.allocate(self.sources.shape, np.uint8)
        return Case(lambda: self.stream.copy(self.sources, target), 2 * self.sources.nbytes)

    def _resize(self, of: Filter, *, video: bool = False) -> Case:
        from onestream.preprocess.cuda.resize import ExactResize, ToResize

        plan = Plan(self.size_hw, Window(0, 0, *self.size_hw), _TARGET, Window(0, 0, *_TARGET), (0, 0), _TARGET, None)
        targets = self.stream.allocate((self.count, *_TARGET, 3), np.uint8)
        # A surface is smaller than the picture whose memory it has.
        yuv = self._surface() if video else None
        items = [ToResize(self.sources.at(at), plan, targets.at(at), yuv) for at in range(self.count)]
        resizer = ExactResize(Resize(mode="exact", size=_TARGET, filter=of), channels=3, stream=self.stream)
        read = self.count * (yuv.u * 3 // 2) if yuv else self.sources.nbytes
        return Case(lambda: resizer.enqueue(items), read + targets.nbytes)

    def _surface(self) -> YuvFormat:
        """NV12 of BT.601, as NVDEC stores it."""
        height, width = self.size_hw
        pitch = width + width % 2
        luma, chroma = pitch * height, (1, 1)
        factors = (76309, 104597, -25675, -53279, 132201, 16, 128, 16)
        return YuvFormat(
            luma, luma + 1, pitch, 2, *chroma, 8, False, *factors, height, width, down=(0, 1, 0), across=(0, 0, 1)
        )

    def _look_up(self) -> Case:
        from onestream.preprocess.cuda.network_values import NetworkValues

        table = np.linspace(-2, 2, 3 * 256, dtype=np.float32).reshape(3, 256)
        values = NetworkValues(table, planar=True, stream=self.stream)
        samples = self.stream.allocate((self.count, 3, *self.size_hw), np.float32)
        pixels, rows = self._each(self.sources), self._each(samples)
        return Case(lambda: values.enqueue(pixels, rows), self.sources.nbytes + samples.nbytes)

    def _rectify(self) -> Case:
        from onestream.preprocess.cuda.rectify import Rectify, ToRectify

        sine, cosine = math.sin(math.radians(_DEGREES)), math.cos(math.radians(_DEGREES))
        turned = np.array([[cosine, -sine, self.size_hw[1] / 8], [sine, cosine, -self.size_hw[0] / 8], [0, 0, 1]])
        targets = self.stream.allocate(self.sources.shape, np.uint8)
        items = [ToRectify(self.sources.at(at), turned, targets.at(at)) for at in range(self.count)]
        rectify = Rectify(self.stream)
        return Case(lambda: rectify.enqueue(items), self.sources.nbytes + targets.nbytes)

    def _each(self, arrays: DeviceArray) -> list[DeviceArray]:
        return [arrays.at(at) for at in range(self.count)]


class Clock:
    """GPU time of what is queued, while the host is ahead: copies go first, for as long as queueing takes."""

    def __init__(self, stream: Stream, megabytes: float) -> None:
        self._stream, size = stream, int(megabytes * 1e6)
        self._from, self._to = (stream.allocate((size,), np.uint8) for _ in range(2))
        self._before, self._after = stream.event(), stream.event()
        self._copy_ms = 1e-3
        self._copy_ms = max(1e-3, self.milliseconds(lambda: stream.copy(self._from, self._to)))

    def milliseconds(self, enqueue: Callable[[], object]) -> float:
        """Median of several rounds, for one call of ``enqueue``, after a warm-up."""
        enqueue()
        self._stream.sync()
        began = time.perf_counter()
        enqueue()
        queueing_ms = 1000 * (time.perf_counter() - began)
        ahead = min(200, math.ceil(2 * _REPEATS * queueing_ms / self._copy_ms))
        found = []
        for _ in range(_ROUNDS):
            for _ in range(ahead):
                self._stream.copy(self._from, self._to)
            self._stream.record(self._before)
            for _ in range(_REPEATS):
                enqueue()
            self._stream.record(self._after)
            self._stream.sync()
            found.append(self._after.milliseconds_since(self._before) / _REPEATS)
        return float(np.median(found))


def measure(stream: Stream, points: Points, kernels: list[str], sizes: list[str], megabytes: float) -> None:
    """Every kernel at every size. One that fails is reported, and the next is measured."""
    clock = Clock(stream, megabytes)
    for size in sizes:
        pictures, copied = Pictures(stream, size, megabytes=megabytes), None
        for kernel in kernels:
            about = {"part": "kernel", "kernel": kernel, "size": size, "pictures": pictures.count}
            try:
                case = pictures.case(kernel)
                spent_ms = clock.milliseconds(case.enqueue)
            except Exception as error:  # a missing package, a driver's error: the others are still measured
                points.fail(error, **about)
                continue
            rate = case.moved / spent_ms / 1e6 if spent_ms else 0.0
            copied = rate if kernel == "copy" else copied
            points.add(
                **about,
                microseconds=round(1000 * spent_ms / pictures.count, 3),
                gb_per_s=round(rate, 1),
                of_copy=round(rate / copied, 3) if copied else None,
            )


def main() -> int:
    """Measure; 1 where there is no GPU."""
    options = parser("benchmarks.gpu.kernels", __doc__)
    options.set_defaults(sizes=[*SIZES])
    options.add_argument("--only", action="append", choices=KERNELS, help="one kernel; may be given several times")
    options.add_argument("--megabytes", type=float, default=256, help="of the pictures together, beyond the L2 cache")
    given = options.parse_args()
    try:
        stream = open_device().stream()
    except PreprocessError as error:
        return no_gpu("benchmarks.gpu.kernels", error)
    measure(stream, Points(given.points), given.only or [*KERNELS], given.sizes, given.megabytes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
