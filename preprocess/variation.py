"""One random variation of an image, as training sees it: a box, a flip and a change of colour.

A variation takes the place of a definition's geometry: the box is cut from the decoded image, resized to the
definition's output size with its filter, flipped, recoloured; everything else stays the definition's. It is a value,
drawn outside (``training.augmentation``), so that every backend executes the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Mapping, Part, Size, Window
from onestream.preprocess.operations import Resize

Pixels = npt.NDArray[np.uint8]

_CHROMA_MARGIN = 2
"""JPEG decoders interpolate chroma from neighbours that a cut would take away."""


@dataclass(frozen=True, slots=True)
class Variation:
    """The change that augmentation makes to one image.

    ``box`` lies inside the oriented image, in pixels. ``color`` is None or (channels, channels + 1) float32: the
    factors of the input channels, in levels and in the definition's order, and what is added; the result is rounded to
    nearest and clipped to 0 to 255.
    """

    box: Window
    flip: bool = False
    color: npt.NDArray[np.float32] | None = None


Vary = Callable[[Size], Variation]
"""Gives the variation of an image of (height, width) pixels, which is known once its header was read."""


def canvas_of(definition: Definition) -> Size:
    """The (height, width) to which a variation is resized.

    Raises ``ValueError`` where the definition's output size depends on the image.
    """
    height, width = definition.output_spec.size_hw
    if height is None or width is None:
        raise ValueError("the definition's output size depends on the image; end it with center_crop, pad or letterbox")
    return height, width


def resize_of(definition: Definition) -> Resize:
    """How a variation is brought to the canvas: as the definition's first resize filters, else antialiased bilinear."""
    size, first = canvas_of(definition), definition.resize
    if first is None:
        return Resize(mode="exact", size=size)
    return Resize(mode="exact", size=size, filter=first.filter, antialias=first.antialias)


def box_part(box: Window, source_hw: Size) -> Part:
    """The part to decode for a box, and the box's place in it."""
    anchor, shape, start, end = [], [], [], []
    for first, kept, source in ((box.top, box.height, source_hw[0]), (box.left, box.width, source_hw[1])):
        low, high = max(0, first - _CHROMA_MARGIN), min(source, first + kept + _CHROMA_MARGIN)
        anchor.append(low)
        shape.append(high - low)
        start.append(float(first - low))
        end.append(float(first - low + kept))
    return Part((anchor[0], anchor[1]), (shape[0], shape[1]), (start[0], start[1]), (end[0], end[1]))


def variation_mapping(definition: Definition, variation: Variation, size_hw: Size) -> Mapping:
    """Where the points of an image of ``size_hw`` come to lie on the canvas of a variation.

    Raises as ``canvas_of``.
    """
    canvas, box = canvas_of(definition), variation.box
    rows, columns = canvas[0] / box.height, canvas[1] / box.width
    scale, offset = (rows, columns), (-box.top * rows, -box.left * columns)
    if variation.flip:
        scale, offset = (rows, -columns), (offset[0], canvas[1] - offset[1])
    return Mapping(size_hw, canvas, scale, offset)


def recolored(pixels: Pixels, color: npt.NDArray[np.float32]) -> Pixels:
    """``pixels`` (height, width, channels) with ``Variation.color`` applied: the specification in NumPy."""
    channels = pixels.shape[2]
    levels = pixels.astype(np.float32)
    out = np.empty_like(pixels)
    for channel in range(channels):
        value = levels[:, :, 0] * color[channel, 0]
        for source in range(1, channels):
            value = value + levels[:, :, source] * color[channel, source]
        # Half a level, then cut: rounds to nearest.
        out[:, :, channel] = np.clip(value + color[channel, channels] + np.float32(0.5), 0, 255).astype(np.uint8)
    return out
