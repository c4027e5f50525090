"""The CPU's part after decoding: resample the part, place it on the canvas, bring it to the network's layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.backends.base import Sample, level_table
from onestream.preprocess.changes import AnyChange, Factors, changed
from onestream.preprocess.cpu.kernels import look_up_interleaved, look_up_planar, recolor
from onestream.preprocess.cpu.pillow_weights import columns_first
from onestream.preprocess.cpu.pillow_window import resample_as_pillow
from onestream.preprocess.cpu.rectify import rectify
from onestream.preprocess.cpu.resample import resample
from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Size
from onestream.preprocess.moves import SUPPORT
from onestream.preprocess.operations import Filter
from onestream.preprocess.plan import Part, Placement, part_of
from onestream.preprocess.variation import Sampling, Variation, resize_of

Pixels = npt.NDArray[np.uint8]


class CpuFinish:
    """Finishes decoded parts of one definition, image by image.

    ``antialias``: whether its resize averages what it makes smaller.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        resize = definition.resize
        self._filter: Filter | None = resize.filter if resize else None
        self.antialias = resize is None or resize.antialias
        self._to_bgr = definition.color == "bgr"
        self._fill = next(iter(definition.fills), 0)
        self._table = level_table(definition).astype(np.float32)

    @property
    def is_plain(self) -> bool:
        """Whether a part is resized by the triangle filter, in colour, and put on the canvas: no other work."""
        return self._filter == "bilinear" and self._definition.color != "gray"

    def part(self, placement: Placement) -> Part:
        """The part to decode for a placement."""
        if self._filter == "nearest":
            whole = placement.source_hw
            return Part((0, 0), whole, (0.0, 0.0), (float(whole[0]), float(whole[1])))
        return part_of(placement, SUPPORT[self._filter or "bilinear"])

    def finish(self, pixels: Pixels, placement: Placement, part: Part) -> Sample:
        """The network's input from the decoded part, (part.shape[0], part.shape[1], 3) uint8 RGB.

        The result shares no memory with ``pixels``, which may be the decoder's own.
        """
        window = placement.window
        if self._definition.color == "gray":
            pixels = np.array(Image.fromarray(pixels).convert("L"))[:, :, None]
        if not window.height:
            placed = pixels[:0, :0]
        elif self._filter is None:
            top, left = round(part.start[0]), round(part.start[1])
            step = -1 if self._to_bgr else 1
            placed = np.array(pixels[top : top + window.height, left : left + window.width, ::step])
        elif self._filter == "nearest":
            whole = resample(pixels, part, placement.resized_hw, "nearest", to_bgr=self._to_bgr)
            placed = whole[window.top : window.top + window.height, window.left : window.left + window.width]
        else:
            placed = resample(
                pixels,
                part,
                (window.height, window.width),
                self._filter,
                antialias=self.antialias,
                columns_first=columns_first(placement.source_hw, placement.resized_hw),
                to_bgr=self._to_bgr,
            )
        return self.put(placed, placement)

    def put(self, placed: Pixels, placement: Placement) -> Sample:
        """The network's input from the resized window of a placement, (window.height, window.width, channels) uint8.

        Its channels are in the definition's order.
        """
        if placement.fills:
            window, (top, left) = placement.window, placement.offset
            canvas = np.full((*placement.canvas_hw, placed.shape[2]), self._fill, np.uint8)
            canvas[top : top + window.height, left : left + window.width] = placed
            placed = canvas
        return self._to_network(np.ascontiguousarray(placed))

    def vary(self, pixels: Pixels, variation: Variation, part: Part, sampling: Sampling | None) -> Sample:
        """The same for a variation; its box, or the window of its sampling, is from ``part.start`` to ``part.end``."""
        if self._definition.color == "gray":
            pixels = np.array(Image.fromarray(pixels).convert("L"))[:, :, None]
        (top, left), (bottom, right) = (tuple(map(round, corner)) for corner in (part.start, part.end))
        # Pillow cuts and then resizes, so nothing outside may reach the filter.
        cut, canvas_hw = np.array(pixels[top:bottom, left:right]), variation.canvas(self._definition)
        if sampling is None:
            placed = self._resized(cut, canvas_hw)
            if variation.flip:
                # Four times as fast as a copy of the mirrored view, which every later step would make.
                placed = np.take(placed, np.arange(canvas_hw[1])[::-1], axis=1)
            placed = placed[:: -1 if variation.upside_down else 1]
        else:
            placed = self._sampled(cut, sampling, canvas_hw, variation.fill)
        return self.change(placed, variation.changes)

    def change(self, canvas: Pixels, changes: Sequence[AnyChange]) -> Sample:
        """The network's input of a canvas, (height, width, channels) uint8, with changes made to it."""
        if changes:
            # Serving changes no levels, and to load these loops takes a moment.
            from onestream.preprocess.cpu.levels import apply

            canvas = changed(canvas, changes, color=self._definition.color, recolor=_recolored, apply=apply)
        return self._to_network(np.require(canvas, requirements=("C", "W")))

    def _resized(self, cut: Pixels, canvas_hw: Size) -> Pixels:
        size_hw = (cut.shape[0], cut.shape[1])
        resize = resize_of(self._definition, canvas_hw)
        return resample(
            cut,
            _whole(size_hw),
            canvas_hw,
            resize.filter,
            antialias=resize.antialias,
            columns_first=columns_first(size_hw, canvas_hw),
            to_bgr=self._to_bgr,
        )

    def _sampled(self, cut: Pixels, sampling: Sampling, canvas_hw: Size, fill: int | None) -> Pixels:
        size_hw, channels = (cut.shape[0], cut.shape[1]), cut.shape[2]
        if sampling.shrunk_hw != size_hw:
            # By Pillow's own arithmetic, so that every bit is the reference's.
            first = columns_first(size_hw, sampling.shrunk_hw)
            cut = resample_as_pillow(
                cut, _whole(size_hw), sampling.shrunk_hw, "bilinear", columns_first=first, to_bgr=False
            )
        if channels == 1:
            cut = np.repeat(cut, 3, axis=2)
        placed = rectify(cut, sampling.transform, canvas_hw, fill=fill, moved=sampling.moved)[:, :, :channels]
        return placed[:, :, ::-1] if self._to_bgr else placed

    def _to_network(self, pixels: Pixels) -> Sample:
        output = self._definition.network_input
        if output.dtype == "uint8":
            return pixels if output.layout == "NHWC" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
        height, width, channels = pixels.shape
        planar = output.layout == "NCHW"
        sample = np.empty((channels, height, width) if planar else pixels.shape, np.float32)
        (look_up_planar if planar else look_up_interleaved)(pixels, self._table, sample)
        return sample if output.dtype == "float32" else sample.astype(output.dtype)


def _whole(size_hw: Size) -> Part:
    return Part((0, 0), size_hw, (0.0, 0.0), (float(size_hw[0]), float(size_hw[1])))


def _recolored(pixels: Pixels, factors: Factors) -> Pixels:
    """``changes.recolored``, compiled."""
    pixels = np.array(pixels, order="C")
    recolor(pixels, factors)
    return pixels
