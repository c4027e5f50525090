"""Backgrounds shown behind persons: a colour, a picture, or the frame itself, blurred."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from onestream.postprocess.matte import blur_reference
from onestream.postprocess.matte.stretch import Levels, Steps, mixed, steps
from onestream.postprocess.planes import from_rgb, subsampled
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import ColorRule, Matrix, Planes, Range

CELL = 8
"""Luma pixels on each side of the cells that are blurred."""
_FILTERS = 3


@dataclass(frozen=True, slots=True)
class Layer:
    """What lies behind one plane: ``rows`` (any height, the plane's width), mixed to the plane's rows by ``steps``."""

    rows: Levels
    steps: Steps


class Background(ABC):
    """Gives what lies behind each plane of a frame."""

    @abstractmethod
    def layers(self, frame: Planes, rule: ColorRule, *, literally: bool = False) -> tuple[Layer, Layer, Layer]:
        """The layers behind Y, U and V of an 8-bit frame, whose planes may have padded rows.

        ``literally``: by NumPy instead of compiled loops, with equal results. Raises ``ValueError`` where ``rule``
        cannot be resolved for the frame.
        """


class Still(Background):
    """A background that does not change with the frames, only with their size and format: kept for the last of them."""

    def __init__(self) -> None:
        self._kept: tuple[object, tuple[Layer, Layer, Layer]] | None = None

    def layers(self, frame: Planes, rule: ColorRule, *, literally: bool = False) -> tuple[Layer, Layer, Layer]:  # noqa: ARG002
        """See ``Background.layers``."""
        colors = rule.resolve(matrix_tag=frame.matrix_tag, full_range=frame.full_range)
        key = (frame.size_hw, frame.shifts, colors.matrix, colors.range)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self._made(*key)
        return self._kept[1]

    @abstractmethod
    def _made(self, size_hw: Size, shifts: Size, matrix: Matrix, range_: Range) -> tuple[Layer, Layer, Layer]:
        """The layers for frames of a size and format."""


class Color(Still):
    """One colour, as red, green and blue of 0 to 255."""

    def __init__(self, rgb: tuple[int, int, int]) -> None:
        super().__init__()
        self._pixel = np.array([[rgb]], np.uint8)

    def _made(self, size_hw: Size, shifts: Size, matrix: Matrix, range_: Range) -> tuple[Layer, Layer, Layer]:
        y, u, v = from_rgb(self._pixel, matrix, range_, (0, 0))
        luma, chroma = size_hw, subsampled(size_hw, shifts)
        return _uniform(y, luma), _uniform(u, chroma), _uniform(v, chroma)


class Picture(Still):
    """A picture, (height, width, 3) uint8 RGB, scaled to cover the frame and cut evenly at the sides that stand out."""

    def __init__(self, pixels: Levels) -> None:
        super().__init__()
        self._pixels = pixels

    def _made(self, size_hw: Size, shifts: Size, matrix: Matrix, range_: Range) -> tuple[Layer, Layer, Layer]:
        y, u, v = from_rgb(covering(self._pixels, size_hw), matrix, range_, shifts)
        return _whole(y), _whole(u), _whole(v)


class Blur(Background):
    """The frame itself, blurred: means of 8×8 pixels, three box filters over these, stretched back bilinearly.

    ``radius`` is about the standard deviation in pixels, 12 or more. The filters reach r = ``radius // 8`` cells to
    each side, where the outer cell repeats; together these steps have a standard deviation of 8 r + 4 pixels (the
    variances of boxes of n cells are (n² - 1) / 12). ``reach`` is r, ``filters`` their number.
    """

    def __init__(self, radius: int) -> None:
        if radius < CELL + CELL // 2:
            raise ValueError(f"the radius must be {CELL + CELL // 2} pixels or more, got {radius}")
        self.reach, self.filters = radius // CELL, _FILTERS

    def layers(self, frame: Planes, rule: ColorRule, *, literally: bool = False) -> tuple[Layer, Layer, Layer]:  # noqa: ARG002
        """See ``Background.layers``."""
        chroma_hw = subsampled(frame.size_hw, frame.shifts)
        chroma_cell = (CELL >> frame.shifts[0], CELL >> frame.shifts[1])
        return (
            self._blurred(frame.y, frame.size_hw, (CELL, CELL), literally),
            self._blurred(frame.u, chroma_hw, chroma_cell, literally),
            self._blurred(frame.v, chroma_hw, chroma_cell, literally),
        )

    def _blurred(self, plane: Levels, size_hw: Size, cell_hw: Size, literally: bool) -> Layer:
        cells = np.empty((-(-size_hw[0] // cell_hw[0]), -(-size_hw[1] // cell_hw[1])), np.uint8)
        down = steps(size_hw[0], cells.shape[0], per_cell=(cell_hw[0], 1))
        across = steps(size_hw[1], cells.shape[1], per_cell=(cell_hw[1], 1))
        if literally:
            blur_reference.cell_means(plane, *size_hw, *cell_hw, cells)
            for _ in range(self.filters):
                blur_reference.box_filter(cells, self.reach)
            return Layer(mixed(cells, across, axis=1), down)
        from onestream.postprocess.matte import blur_kernels
        from onestream.postprocess.matte import kernels as matte_kernels

        blur_kernels.cell_means(plane, *size_hw, *cell_hw, cells)
        for _ in range(self.filters):
            blur_kernels.box_filter(cells, self.reach)
        wide = np.empty((cells.shape[0], size_hw[1]), np.uint8)
        matte_kernels.widen(cells, *across, wide)
        return Layer(wide, down)


def read_picture(content: bytes) -> Levels:
    """The pixels of an image file, turned as its EXIF orientation says. Raises ``ValueError`` where it is none."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray((ImageOps.exif_transpose(image) or image).convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"not an image that can be read ({error})") from None


def covering(pixels: Levels, size_hw: Size) -> Levels:
    """A picture scaled so that it covers ``size_hw``, triangle filter with antialiasing, and cut at the centre."""
    from PIL import Image

    height, width = size_hw
    scale = max(height / pixels.shape[0], width / pixels.shape[1])
    seen_h, seen_w = height / scale, width / scale
    top, left = (pixels.shape[0] - seen_h) / 2, (pixels.shape[1] - seen_w) / 2
    # Sums in floating point may reach past the picture by less than a rounding error.
    box = (max(left, 0.0), max(top, 0.0), min(left + seen_w, pixels.shape[1]), min(top + seen_h, pixels.shape[0]))
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR, box))


def _uniform(value: Levels, size_hw: Size) -> Layer:
    return Layer(np.full((1, size_hw[1]), value[0, 0], np.uint8), steps(size_hw[0], 1))


def _whole(plane: Levels) -> Layer:
    return Layer(plane, steps(plane.shape[0], plane.shape[0]))
