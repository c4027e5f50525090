"""A canvas made of several samples: where each of them lies on it, and how much of it is seen.

A collage is to several pictures what a variation is to one: a value, drawn outside (``training.augmentation``), that
every backend executes in the same way. Each part is a variation whose canvas is a rectangle of the collage's, so that
of each picture only what is seen is decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from onestream.preprocess.changes import AnyChange
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.operations import Level
from onestream.preprocess.projection import Corners, Projection
from onestream.preprocess.variation import Variation

Pixels = npt.NDArray[np.uint8]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Part(_Value):
    """A sample of the dataset, by its index, varied and placed: its top left corner in pixels of the collage."""

    sample: int = Field(ge=0)
    variation: Variation
    top: int = Field(default=0, ge=0)
    left: int = Field(default=0, ge=0)

    def __str__(self) -> str:
        size_hw = self.variation.canvas_hw
        place = "" if size_hw is None else f" on {size_hw[1]}x{size_hw[0]} at ({self.left}, {self.top})"
        return f"sample {self.sample}{place}: {self.variation}"


class Layer(_Value):
    """Parts, painted one after the other on a canvas of one level; ``share`` is what the layer gives to the collage."""

    parts: tuple[Part, ...]
    share: float = Field(default=1.0, ge=0, le=1)


class Collage(_Value):
    """Layers whose levels are added by their shares: a frozen value, equal by content, that is written as JSON.

    ``fill`` is the level where a layer has no part. ``changes`` are made to the levels of the whole, in their order.
    """

    layers: tuple[Layer, ...]
    fill: Level = 0
    changes: tuple[AnyChange, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all layers, one layer after the other."""
        return tuple(part for layer in self.layers for part in layer.parts)

    def shares(self, canvas_hw: Size) -> list[float]:
        """What each part gives to the collage, 0 to 1: its share of the area times the share of its layer.

        A first part that fills the canvas has the area that the others of its layer leave.
        """
        found: list[float] = []
        for layer in self.layers:
            sizes = [part.variation.canvas_hw or canvas_hw for part in layer.parts]
            areas = [height * width / (canvas_hw[0] * canvas_hw[1]) for height, width in sizes]
            if areas and areas[0] == 1:
                areas[0] -= sum(areas[1:])
            found += [layer.share * area for area in areas]
        return found

    def without(self, samples: Collection[int]) -> Collage:
        """The collage without the parts of some samples. A layer that has none left leaves its share to the others."""
        kept = [(tuple(one for one in layer.parts if one.sample not in samples), layer.share) for layer in self.layers]
        kept = [layer for layer in kept if layer[0]]
        total = sum(share for _, share in kept)
        layers = [Layer(parts=parts, share=share / total if total else 1 / len(kept)) for parts, share in kept]
        return self.model_copy(update={"layers": tuple(layers) or (Layer(parts=()),)})

    def __str__(self) -> str:
        if len(self.parts) == 1 and self.parts[0].variation.canvas_hw is None:
            return "; ".join(map(str, (self.parts[0].variation, *self.changes)))
        layers = [" + ".join(str(part) for part in layer.parts) or "nothing" for layer in self.layers]
        if len(layers) > 1:
            layers = [f"{layer.share:.3g} of [{shown}]" for layer, shown in zip(self.layers, layers, strict=True)]
        return "; ".join([" + ".join(layers), *(str(change) for change in self.changes)])


def blended(collage: Collage, pixels: Sequence[Pixels], shape: tuple[int, int, int]) -> Pixels:
    """The levels of a collage, uint8 (height, width, channels), without its changes, from those of its parts.

    Shares are float32, and a sum is rounded to nearest.
    """
    given = iter(pixels)
    layers = [_painted(layer, [next(given) for _ in layer.parts], shape, collage.fill) for layer in collage.layers]
    if len(layers) == 1:
        return layers[0]
    total = np.full(shape, 0.5, np.float32)
    for layer, levels in zip(collage.layers, layers, strict=True):
        total += levels * np.float32(layer.share)
    return total.astype(np.uint8)


def cut(
    variation: Variation,
    canvas_hw: Size,
    source_hw: Size,
    window: Window,
    *,
    origin: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
) -> Variation:
    """What a window of a collage shows of a variation whose canvas, of ``canvas_hw``, lies there ``scale`` as large.

    ``origin`` is where the canvas's top left corner lies, (y, x) in pixels of the collage; the window is within the
    canvas. Where a picture of ``source_hw`` stays upright and fills the window, the edges of what is seen are moved to
    whole pixels of it, so that it is resized by the definition's filter (``Variation.box``).
    """
    offset = window.top - origin[0], window.left - origin[1]
    top, left = (distance / scale for distance in offset)
    bottom, right = (offset[0] + window.height) / scale, (offset[1] + window.width) / scale
    corners = _box(variation.corners, canvas_hw, source_hw, ((top, bottom), (left, right)), window)
    if corners is None:
        seen = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
        located = Projection(source_hw, canvas_hw, variation.corners).points_to_source(seen)
        one, two, three, four = ((x, y) for x, y in located.tolist())
        corners = one, two, three, four
    size_hw = window.height, window.width
    changes = [change.cut(offset, scale, size_hw) for change in variation.changes]
    return Variation(
        corners=corners,
        fill=variation.fill,
        changes=tuple(change for change in changes if change is not None),
        canvas_hw=size_hw,
    )


def _box(
    corners: Corners,
    canvas_hw: Size,
    source_hw: Size,
    seen: tuple[tuple[float, float], tuple[float, float]],
    window: Window,
) -> Corners | None:
    """The corners of what is seen of an upright picture, in whole pixels; None where it is turned or does not fill it.

    ``seen`` are first and last along y and x, in pixels of the variation's canvas. By a pixel of the window a picture
    may be too small: its place is rounded to whole ones.
    """
    (left, top), (right, other_top), (other_right, bottom), (other_left, other_bottom) = corners
    if (left, right, top, bottom) != (other_left, other_right, other_top, other_bottom):
        return None
    edges: list[list[int]] = []
    for axis, (first, last) in enumerate(((top, bottom), (left, right))):
        scale = (last - first) / canvas_hw[axis]
        places = [first + scale * at for at in seen[axis]]
        allowed = max(0.5, abs(places[1] - places[0]) / (window.height, window.width)[axis])
        whole = [min(max(round(place), 0), source_hw[axis]) for place in places]
        if whole[0] == whole[1] or any(abs(a - b) > allowed for a, b in zip(whole, places, strict=True)):
            return None
        edges.append(whole)
    (y0, y1), (x0, x1) = edges
    return (x0, y0), (x1, y0), (x1, y1), (x0, y1)


def _painted(layer: Layer, pixels: Sequence[Pixels], shape: tuple[int, int, int], fill: int) -> Pixels:
    if len(pixels) == 1 and pixels[0].shape == shape:
        return pixels[0]
    canvas = np.full(shape, fill, np.uint8)
    for part, levels in zip(layer.parts, pixels, strict=True):
        canvas[part.top : part.top + levels.shape[0], part.left : part.left + levels.shape[1]] = levels
    return canvas
