"""Decoded pictures and their regions on a GPU: cut, rectified and resized there, all of a batch at once.

One launch rectifies, one or two resize, one more makes the network's values; every bit is the reference's. On a GPU it
was **not measured**: its kernels ran by a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onestream.preprocess.backends.base import level_table
from onestream.preprocess.backends.exactness import refuse_inexact
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.network_values import NetworkValues
from onestream.preprocess.cuda.rectify import Rectify, ToRectify
from onestream.preprocess.cuda.resize import PillowResize, ToResize
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Quads, fill_values, free_sizes, place
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import Region
from onestream.preprocess.quads import checked_cuts, homographies


class GpuFromPicture:
    """``FromPicture`` on one stream; belongs to the thread that makes it. Nothing waits.

    Raises ``CannotCompile`` naming what it cannot do exactly.
    """

    def __init__(self, definition: Definition, limits: Limits, *, stream: Stream) -> None:
        refuse_inexact(definition, backend="cvcuda", own_filter=False)
        self.definition, self.limits = definition, limits
        self._stream = stream
        self._channels, output = definition.output_spec.channels, definition.network_input
        self._planar = output.layout == "NCHW"
        self._fill = next(iter(fill_values(definition)), None)
        self._resizer = PillowResize(
            definition.resize, channels=self._channels, to_bgr=definition.color == "bgr", stream=stream
        )
        self._rectifier = Rectify(stream)
        self._values: NetworkValues | None = None
        if output.dtype != "uint8" or self._planar:
            self._values = NetworkValues(level_table(definition), planar=self._planar, stream=stream)

    def enqueue(
        self, pictures: Sequence[DeviceArray], quads: Sequence[Quads] | None = None
    ) -> list[DeviceArray | BadImage]:
        """Queue the samples of pictures, (height, width, 3) uint8 RGB, or of all their regions, in order.

        ``quads`` are those of each picture, as of ``FromPicture.run``, which says what is raised. Samples are valid on
        the stream; the pictures must stay until it has passed.
        """
        if isinstance(self.definition.source, Region) != (quads is not None):
            raise ValueError(f"the definition begins with {self.definition.source.op}; quads go with region")
        cut = list(pictures) if quads is None else self._cut(pictures, quads)
        results: list[DeviceArray | BadImage] = []
        work: list[ToResize] = []
        for pixels in cut:
            try:
                work.append(self._work(pixels))
                results.append(work[-1].canvas)
            except BadImage as error:
                results.append(error.as_result())
        self._resizer.enqueue(work)
        if self._values is None or not work:
            return results
        canvases = [item.canvas for item in work]
        samples = [self._sample(canvas) for canvas in canvases]
        self._values.enqueue(canvases, samples)
        finished = iter(samples)
        return [result if isinstance(result, BadImage) else next(finished) for result in results]

    def _cut(self, pictures: Sequence[DeviceArray], quads: Sequence[Quads]) -> list[DeviceArray]:
        """The pixels of every region: windows of the pictures, and what is rectified, queued."""
        region = self.definition.source
        assert isinstance(region, Region)
        regions: list[DeviceArray] = []
        rectified: list[ToRectify] = []
        for picture, some in zip(pictures, quads, strict=True):
            height, width, _ = picture.shape
            found = checked_cuts(region, some, (height, width), limits=self.limits)
            windows, quarters = found.windows.tolist(), found.quarters.tolist()
            transforms = homographies(found.quads, found.sizes)
            for number, (rows, columns) in enumerate(found.sizes.tolist()):
                if region.shape == "box" and not quarters[number]:
                    left, top, _, _ = windows[number]
                    regions.append(picture.window(top, left, rows, columns))
                else:
                    # A box at whole pixels is rectified to its own pixels, turned.
                    target = self._stream.allocate((rows, columns, 3), np.uint8)
                    rectified.append(ToRectify(picture, transforms[number], target))
                    regions.append(target)
        self._rectifier.enqueue(rectified)
        return regions

    def _work(self, pixels: DeviceArray) -> ToResize:
        """What the resize does with the pixels of a region. Raises ``BadImage``."""
        height, width, _ = pixels.shape
        for size_hw in free_sizes(self.definition, (height, width)):
            self.limits.check_resized(size_hw)
        placement = place(self.definition, (height, width))
        canvas = self._stream.allocate((*placement.canvas_hw, self._channels), np.uint8)
        if self._fill is not None:
            self._stream.fill(canvas, self._fill)
        return ToResize(pixels, placement, canvas)

    def _sample(self, canvas: DeviceArray) -> DeviceArray:
        height, width, channels = canvas.shape
        shape = (channels, height, width) if self._planar else canvas.shape
        return self._stream.allocate(shape, self.definition.network_input.dtype)
