"""Decoded pictures and their regions on a GPU: cut, rectified and resized there, all of a batch at once.

One launch rectifies, one resizes, one more makes the network's values; every bit is the reference's. On a GPU it was
**not measured**: its kernels ran by a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import level_fill, level_table, refuse_inexact
from onestream.preprocess.backends.batches import groups
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.network_values import NetworkValues
from onestream.preprocess.cuda.rectify import Rectify, ToRectify
from onestream.preprocess.cuda.resize import ExactResize, ToResize
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Quads, Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import Region
from onestream.preprocess.plan import Plan, Planner
from onestream.preprocess.projection import homographies
from onestream.preprocess.quads import checked_cuts


class GpuFromPicture:
    """``FromPicture`` on one stream, for one thread at a time, which enters the device. Nothing waits.

    Samples of one size lie side by side in memory, in pieces of at most ``side_by_side``, so that a network takes them
    as a batch. Raises ``CannotCompile`` naming what it cannot do exactly.
    """

    def __init__(self, definition: Definition, limits: Limits, *, stream: Stream, side_by_side: int = 1) -> None:
        refuse_inexact(definition, backend="cvcuda", own_filter=False)
        self.definition, self.limits = definition, limits
        self._planner = Planner(definition, limits)
        self._stream, self._most = stream, side_by_side
        self._channels, output = definition.output_spec.channels, definition.network_input
        self._planar = output.layout == "NCHW"
        self._fill = level_fill(definition, backend="cvcuda")
        self._resizer = ExactResize(
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
        cuts = [self._cut(picture) for picture in pictures] if quads is None else list(self._cuts(pictures, quads))
        good = [cut for cut in cuts if not isinstance(cut, BadImage)]
        canvases = self._allocate([(*cut.plan.canvas_hw, self._channels) for cut in good], np.uint8, fill=self._fill)
        waiting = iter(canvases)
        # All at once but where the rectified regions would take too much memory.
        for group in groups(good, max_items=max(1, len(good))):
            self._resize(group, [next(waiting) for _ in group])
        samples = canvases
        if self._values is not None and good:
            samples = self._allocate(list(map(self._sample_shape, canvases)), self.definition.network_input.dtype)
            self._values.enqueue(canvases, samples)
        finished = iter(samples)
        return [cut if isinstance(cut, BadImage) else next(finished) for cut in cuts]

    def _cuts(self, pictures: Sequence[DeviceArray], quads: Sequence[Quads]) -> Iterator[_Cut | BadImage]:
        """What is cut of every picture for its regions."""
        region = self.definition.source
        assert isinstance(region, Region)
        for picture, some in zip(pictures, quads, strict=True):
            height, width, _ = picture.shape
            found = checked_cuts(region, some, (height, width), limits=self.limits)
            windows, quarters = found.windows.tolist(), found.quarters.tolist()
            transforms = homographies(found.quads, found.sizes)
            for number, (rows, columns) in enumerate(found.sizes.tolist()):
                if region.shape == "box" and not quarters[number]:
                    left, top, _, _ = windows[number]
                    yield self._cut(picture.window(top, left, rows, columns))
                else:
                    # A box at whole pixels is rectified to its own pixels, turned.
                    yield self._cut(picture, (rows, columns), transforms[number])

    def _cut(
        self, picture: DeviceArray, size_hw: Size | None = None, transform: npt.NDArray[np.float64] | None = None
    ) -> _Cut | BadImage:
        try:
            return _Cut(picture, self._planner(size_hw or (picture.shape[0], picture.shape[1])), transform)
        except BadImage as error:
            return error.as_result()

    def _resize(self, group: Sequence[_Cut], canvases: Sequence[DeviceArray]) -> None:
        """Queue what brings regions to their canvases."""
        sources, rectified = [], []
        for cut in group:
            source = cut.picture
            if cut.transform is not None:
                source = self._stream.allocate((*cut.plan.source_hw, 3), np.uint8)
                rectified.append(ToRectify(cut.picture, cut.transform, source))
            sources.append(source)
        self._rectifier.enqueue(rectified)
        self._resizer.enqueue(
            [ToResize(source, cut.plan, canvas) for source, cut, canvas in zip(sources, group, canvases, strict=True)]
        )

    def _allocate(
        self, shapes: Sequence[tuple[int, ...]], dtype: npt.DTypeLike, *, fill: int | None = None
    ) -> list[DeviceArray]:
        """An array of each shape, those of one shape side by side."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for number, shape in enumerate(shapes):
            alike.setdefault(shape, []).append(number)
        found: dict[int, DeviceArray] = {}
        for shape, numbers in alike.items():
            for first in range(0, len(numbers), self._most):
                some = numbers[first : first + self._most]
                piece = self._stream.allocate((len(some), *shape), dtype)
                if fill is not None:
                    self._stream.fill(piece, fill)
                found |= {number: piece.at(row) for row, number in enumerate(some)}
        return [found[number] for number in range(len(shapes))]

    def _sample_shape(self, canvas: DeviceArray) -> tuple[int, ...]:
        height, width, channels = canvas.shape
        return (channels, height, width) if self._planar else canvas.shape


@dataclass(frozen=True, slots=True)
class _Cut:
    """A region and its plan: ``picture`` itself, or what a transform (``projection.homographies``) takes from it."""

    picture: DeviceArray
    plan: Plan
    transform: npt.NDArray[np.float64] | None

    @property
    def pixels(self) -> int:
        """That are rectified into memory of their own."""
        height, width = self.plan.source_hw
        return 0 if self.transform is None else height * width
