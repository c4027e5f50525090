"""The resize of CV-CUDA, ``hq_resize`` with a region per image: the triangle filter, antialiased, and nothing else.

Every image's window goes from its decoded pixels straight to its place by one call. It keeps fractions between its two
passes, which is a level, and repeats the border where Pillow renormalizes the filter: up to ten levels in the outermost
pixels of an uncropped image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onestream.preprocess.cuda.device import INSTALL_GPU, DeviceArray, Stream
from onestream.preprocess.cuda.resize import ToResize
from onestream.preprocess.errors import BackendMissing
from onestream.preprocess.geometry import Window
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Color

try:
    import cvcuda
except ImportError as error:
    raise BackendMissing(f"the resize of CV-CUDA needs cvcuda and an NVIDIA driver: {INSTALL_GPU} ({error})") from error

CACHE_BYTES = 256 * 1024 * 1024
"""What CV-CUDA may keep of freed memory; without a bound it grows with every new image size (CV-CUDA#231)."""


class HqResize:
    """``ExactResize`` by CV-CUDA; its calls wait for events of its own on the host."""

    def __init__(self, resize: Resize | None, *, color: Color, stream: Stream) -> None:
        cvcuda.set_cache_limit_inbytes(CACHE_BYTES)
        self._queue = cvcuda.as_stream(stream.handle)
        self._format, self._conversion = {
            "rgb": (cvcuda.Format.RGB8, None),
            "bgr": (cvcuda.Format.BGR8, cvcuda.ColorConversion.RGB2BGR),
            "gray": (cvcuda.Format.U8, cvcuda.ColorConversion.RGB2GRAY),
        }[color]
        # Without a resize the window is copied pixel by pixel.
        self._interpolation = cvcuda.Interp.LINEAR if resize else cvcuda.Interp.NEAREST

    def enqueue(self, items: Sequence[ToResize]) -> None:
        """See ``ExactResize.enqueue``; something of every picture is seen."""
        decoded = cvcuda.as_images([_external(item.source) for item in items], cvcuda.Format.RGB8)
        batch = decoded
        if self._conversion is not None:
            batch = cvcuda.cvtcolor(decoded, self._conversion, stream=self._queue)
        targets = [Window(*item.plan.offset, *item.plan.window.size_hw) for item in items]
        regions = [(top, left, bottom, right) for (top, bottom), (left, right) in (item.plan.source for item in items)]
        into = cvcuda.ImageBatchVarShape(len(items))
        # At once: CV-CUDA waits for an event of its own at every change of a batch.
        into.pushback(
            [
                cvcuda.as_image(_external(item.canvas.window(to.top, to.left, to.height, to.width)), self._format)
                for item, to in zip(items, targets, strict=True)
            ]
        )
        cvcuda.hq_resize_into(
            into,
            batch,
            antialias=self._interpolation == cvcuda.Interp.LINEAR,
            roi=regions,
            interpolation=self._interpolation,
            stream=self._queue,
        )
        # CV-CUDA keeps batches for later with all their images, which no limit of its cache counts.
        for used in (decoded, batch, into):
            used.clear()


def _external(array: DeviceArray) -> cvcuda.ExternalBuffer:
    """Our array for CV-CUDA, which accepts every object with a CUDA Array Interface but declares its own class."""
    return cast("cvcuda.ExternalBuffer", array)
