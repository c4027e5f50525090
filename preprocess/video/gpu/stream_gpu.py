"""Decode a stream of packets on a GPU while it comes: NVDEC, and kernels of ours for the rest; pixels stay there.

Order, times, sampling, skipping and counts are those of ``stream.StreamDecoder``, by the same code. NVDEC's samples are
FFmpeg's in every bit, so are the colours, and the resize is Pillow's in every bit (*nvdec* in ``tolerances``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from onestream.preprocess.backends.base import level_fill, refuse_inexact
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.resize import ExactResize, ToResize
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import Planner
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.nvdec import SurfaceDecoder
from onestream.preprocess.video.gpu.surfaces import Surface, yuv_format
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import Shown, StreamDecoder, StreamFormat, StreamFrame, open_decoder

if TYPE_CHECKING:
    from onestream.wire.video import Packet


@dataclass(slots=True)
class GpuStreamFrame(StreamFrame):
    """A frame whose ``pixels`` are (1, height, width, channels) uint8 on the GPU, done."""

    _surface: Surface | None
    _stream: Stream

    @property
    def surface(self) -> Surface:
        """See ``StreamFrame.surface``."""
        if self._surface is None:
            raise ValueError("the decoder keeps no pictures; make it with pictures=True")
        return self._surface

    def planes(self) -> Planes:
        """The stored picture in YUV on the host, not turned; waits for the GPU. Raises as ``StreamFrame.planes``."""
        surface = self.surface
        self._stream.device.enter()
        return surface.to_host(self._stream)


class GpuStreamDecoder(StreamDecoder):
    """Decodes one stream, packet by packet, on ``stream``; other arguments are those of ``StreamDecoder``.

    ``stream`` is this decoder's alone: frames of one video follow each other anyway, and none waits for another's. On
    the GPU it holds what NVDEC needs for the size, at most the ``limits``, and one surface for each frame that is not
    taken yet. A video that NVDEC cannot decode exactly goes on with FFmpeg, which ``log`` is told; its frames are plain
    ``StreamFrame``.

    NVDEC conceals damage in silence: ``concealed`` counts packets whose picture never came, not pictures that came
    damaged.

    Raises ``BadSample`` and ``CannotCompile`` as ``StreamDecoder`` does, and ``CannotCompile`` for a definition of
    which it cannot do the geometry. Belongs to one thread at a time.
    """

    def __init__(
        self,
        definition: Definition,
        format: StreamFormat,
        *,
        stream: Stream,
        sampling: Sampling | None = None,
        color: ColorRule | None = None,
        limits: Limits | None = None,
        pictures: bool = False,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(definition, format, sampling=sampling, color=color, limits=limits, pictures=pictures)
        stream.device.enter()
        self._stream = stream
        self._pixels_of = _GpuPictureMaker(definition.pixels(), self._color, self._limits, stream)
        self._surfaces = SurfaceDecoder(
            format.codec,
            format.extradata,
            stream,
            open_on_cpu=lambda: open_decoder(format, self._limits, 1),
            check_size=self._check_size,
            color=self._color,
            log=log,
        )
        self._context = self._surfaces
        self._lost = 0

    @property
    def on_cpu(self) -> str | None:
        """Why FFmpeg decodes this video; None while NVDEC does."""
        return self._surfaces.reason

    def feed(self, packet: Packet | None) -> list[StreamFrame]:
        """As ``StreamDecoder.feed``. Waits for the GPU where frames are ready, so that any stream may read them."""
        self._stream.device.enter()
        try:
            frames = super().feed(packet)
            if any(isinstance(frame, GpuStreamFrame) for frame in frames):
                self._stream.sync()
            return frames
        finally:
            self.concealed += self._surfaces.lost - self._lost
            self._lost = self._surfaces.lost
            if self.done:
                self._surfaces.close()

    def _made(self, shown: Shown) -> StreamFrame:
        surface = shown.frame
        if not isinstance(surface, Surface):
            return super()._made(shown)
        if self._orientation is None:
            self._orientation = surface.orientation
        try:
            pixels = self._pixels_of(surface, self._orientation)
            self.colors = colors = self._colors_of(surface.like)
        except BadImage as error:
            raise BadSample(f"frame {shown.index}: {error.reason}") from None
        except ValueError as error:
            raise BadSample(f"frame {shown.index}: {error}") from None
        return GpuStreamFrame(
            shown.index,
            shown.pts,
            self._seconds(shown.pts),
            surface.pts,
            pixels,
            self._orientation.displayed_size(surface.like.size_hw),
            self._orientation,
            colors,
            None,
            surface if self._pictures else None,
            self._stream,
        )


class _GpuPictureMaker:
    """``picture.PictureMaker`` on a GPU: a surface's window by one resize, which converts it, to its place."""

    def __init__(self, definition: Definition, color: ColorRule, limits: Limits, stream: Stream) -> None:
        refuse_inexact(definition, backend="video on a GPU", own_filter=False)
        self._planner, self._color, self._stream = Planner(definition, limits), color, stream
        self._channels = definition.output_spec.channels
        self._fill = level_fill(definition, backend="video on a GPU")
        self._resizer = ExactResize(
            definition.resize, channels=self._channels, to_bgr=definition.color == "bgr", stream=stream
        )

    def __call__(self, surface: Surface, orientation: Orientation) -> DeviceArray:
        """Queue it: (1, height, width, channels) uint8.

        Raises ``BadImage`` where the definition cannot be applied to this size, ``ValueError`` where the colours cannot
        be converted.
        """
        plan = self._planner(orientation.displayed_size(surface.like.size_hw))
        yuv = yuv_format(surface, self._color, orientation)
        canvas = self._stream.allocate((1, *plan.canvas_hw, self._channels), np.uint8)
        if self._fill is not None:
            self._stream.fill(canvas, self._fill)
        self._resizer.enqueue([ToResize(surface.memory, plan, canvas.at(0), yuv)])
        return canvas
