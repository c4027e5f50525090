"""The operations that move pixels: each has its sizes, what it fills with, its specification and torchvision's twin.

The rounding rules are torchvision's: the proportional side is truncated
(``torchvision.transforms.functional._compute_resized_output_size``), the crop offset is
``int(round((in - out) / 2.0))`` with Python's half-to-even rounding (``center_crop``), and an image smaller than its
crop is padded first.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.operations import Filter, Level, Multiple, Operation, Rounding, Side, TensorSpec

SUPPORT: dict[Filter, int] = {"bilinear": 1, "bicubic": 2, "lanczos": 3}
"""Source pixels that a filter reads to each side at scale 1. *nearest* decides ties on whole-image coordinates."""


class Move(Operation):
    """Base of the operations that move pixels. They resize, or keep a window, of which some may be filled."""

    @property
    def is_free(self) -> bool:
        """Whether the size after it may follow from the image's, so that limits judge it (``Limits.check_resized``)."""
        return False

    def fills(self, least_side: int) -> tuple[int | None, int]:
        """The level with which it may fill, None for none, and a lower bound of both sides after it.

        ``least_side`` is such a bound before it.
        """
        raise NotImplementedError

    def resized(self, size_hw: Size) -> Size:
        """The size to which an image of ``size_hw`` is resized."""
        return size_hw

    def window(self, size_hw: Size) -> Window:
        """What is kept of an image of ``size_hw`` once it is resized, in the coordinates of that.

        Raises ``BadImage`` (too_many_pixels) where a pad would have to cut.
        """
        return Window(0, 0, *self.resized(size_hw))

    def apply(self, image: Image.Image) -> Image.Image:
        """The specification: an image of 8 bit, moved. Raises as ``window``."""
        window, (fill, _) = self.window((image.height, image.width)), self.fills(1)
        canvas = Image.new(image.mode, (window.width, window.height), (fill or 0,) * len(image.getbands()))
        canvas.paste(image, (-window.left, -window.top))
        return canvas

    def twin(self, v2: Any) -> Any:  # noqa: ARG002 (the base has none)
        """The same of ``torchvision.transforms.v2``, which is given; None where it has none."""
        return None


class Resize(Move):
    """Resample to a new size, antialiased, with half-pixel centres, rounding to 8 bit."""

    newer_fields: ClassVar[tuple[str, ...]] = ("multiple_of", "enlarge")
    op: Literal["resize"] = "resize"
    mode: Literal["shorter", "longer", "exact", "fit", "height"] = Field(
        description="*shorter*, *longer*: scale that side to ``size`` and the other in proportion; *exact*: to "
        "``size``; *fit*: into the box ``size``, which the result fills in one side; *height*: to that height, the "
        "width in proportion, but squeezed where it would be above the most that ``size`` allows"
    )
    size: Side | tuple[Side, Side] = Field(
        description="one side in pixels for *shorter* and *longer*, [height, width] for *exact* and *fit*, "
        "[height, most width] for *height*"
    )
    multiple_of: Side = Field(
        default=1,
        description="each side, once it was rounded, becomes the nearest multiple of this (a half goes to the even "
        "one), at least one; ``size`` is one itself. Not with *exact* and *height*",
    )
    enlarge: bool = Field(
        default=True,
        description="*false*: a picture that would grow keeps its size, before ``multiple_of``. Not with *exact* and "
        "*height*",
    )
    filter: Filter = Field(default="bilinear", description="Pillow's filters; *bilinear* is the triangle")
    antialias: bool = Field(
        default=True,
        description="*false*, with *bilinear* only, interpolates between the four nearest pixels even where the image "
        "shrinks, as OpenCV's INTER_LINEAR does",
    )
    rounding: Rounding = Field(
        default="truncate",
        description="of the proportional side: *truncate* (``int``, torchvision), *nearest* (Python's ``round`` of the "
        "exact quotient), *up* (the next whole number), *ratio* (``round(side * (size / other))`` in floats, which may "
        "miss a half that *nearest* meets: ultralytics)",
    )

    @model_validator(mode="after")
    def _size_suits_mode(self) -> Resize:
        one_side = self.mode in ("shorter", "longer")
        if one_side != isinstance(self.size, int):
            raise ValueError(
                f"resize mode {self.mode!r} takes {'one side in pixels' if one_side else '[height, width]'}, "
                f"got size {self.size!r}"
            )
        return self

    @model_validator(mode="after")
    def _mode_allows_other_sizes(self) -> Resize:
        if self.mode in ("exact", "height"):
            for name in self.newer_fields:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"resize mode {self.mode!r} takes no {name}; shorter, longer and fit do")
        sides = self.size if isinstance(self.size, tuple) else (self.size,)
        if any(side % self.multiple_of for side in sides):
            raise ValueError(f"size must be a multiple of multiple_of {self.multiple_of}, got size {self.size!r}")
        return self

    @model_validator(mode="after")
    def _filter_allows_no_antialias(self) -> Resize:
        if not self.antialias and self.filter != "bilinear":
            raise ValueError(f"antialias false goes with filter 'bilinear' only, got filter {self.filter!r}")
        return self

    def output(self, spec: TensorSpec) -> TensorSpec:
        """(height, width, c) to the exact size, or to one that depends on the image."""
        if not isinstance(self.size, tuple) or self.mode == "fit":
            return spec.with_size((None, None))
        return spec.with_size((self.size[0], None) if self.mode == "height" else self.size)

    @property
    def is_free(self) -> bool:
        """See ``Move``; an exact size is judged, too."""
        return True

    def fills(self, least_side: int) -> tuple[int | None, int]:  # noqa: ARG002 (it makes its own size)
        """See ``Move``."""
        if isinstance(self.size, int):
            return None, self.size if self.mode == "shorter" and self.enlarge else 1
        return None, min(self.size) if self.mode == "exact" else 1

    def resized(self, size_hw: Size) -> Size:
        """See ``Move``; every side is at least 1."""
        height, width = self._scaled(*size_hw)
        if not self.enlarge and (height > size_hw[0] or width > size_hw[1]):
            height, width = size_hw
        multiple = self.multiple_of
        return max(1, round(height / multiple)) * multiple, max(1, round(width / multiple)) * multiple

    def _scaled(self, height: int, width: int) -> Size:
        size = self.size
        if isinstance(size, int):
            if height == width:
                return size, size
            if (height < width) == (self.mode == "shorter"):
                return size, self._proportional(size, width, height)
            return self._proportional(size, height, width), size
        if self.mode == "exact":
            return size
        if self.mode == "height":
            return size[0], min(size[1], self._proportional(size[0], width, height))
        # The side that reaches the box first is exact; integers decide, so no ratio is rounded.
        if height * size[1] >= width * size[0]:
            return size[0], self._proportional(size[0], width, height)
        return self._proportional(size[1], height, width), size[1]

    def _proportional(self, size: int, side: int, scaled_side: int) -> int:
        if self.rounding == "ratio":
            return max(1, round(side * (size / scaled_side)))
        if self.rounding == "up":
            return -(-size * side // scaled_side)
        exact = size * side / scaled_side
        return max(1, int(exact) if self.rounding == "truncate" else round(exact))

    def decoding_factor(self, source_hw: Size) -> int:
        """The largest of 1, 2, 4 and 8 by which both sides may be divided and have twice the resized size or more.

        The rule of ``decode.dct_scaling``, with ``source_hw`` the size of the whole picture.
        """
        wanted = [2 * side for side in self.resized(source_hw)]
        return next((n for n in (8, 4, 2) if all(map(int.__ge__, reduced(source_hw, n), wanted))), 1)

    def apply_reduced(self, image: Image.Image, source_hw: Size, factor: int) -> Image.Image:
        """The specification of an antialiased resize of a picture of ``source_hw``, decoded at 1/``factor`` of it.

        A side of which the factor is no divisor ends within its last pixel.
        """
        (height, width), (bottom, right) = self.resized(source_hw), (side / factor for side in source_hw)
        return image.resize((width, height), Image.Resampling[self.filter.upper()], box=(0, 0, right, bottom))

    def apply(self, image: Image.Image) -> Image.Image:
        """See ``Move``."""
        height, width = self.resized((image.height, image.width))
        if not self.antialias:
            return _interpolated(image, (height, width))
        return image.resize((width, height), Image.Resampling[self.filter.upper()])

    def twin(self, v2: Any) -> Any:
        """See ``Move``."""
        if not self.antialias or self.multiple_of > 1 or not self.enlarge:
            return None
        if self.mode != "exact" and (self.mode != "shorter" or self.rounding != "truncate"):
            return None
        return v2.Resize(self.size, interpolation=v2.InterpolationMode[self.filter.upper()], antialias=True)


class CenterCrop(Move):
    """Cut a window from the centre. A smaller image is first padded with zeros, as in torchvision."""

    newer_fields: ClassVar[tuple[str, ...]] = ("rounding",)
    op: Literal["center_crop"] = "center_crop"
    size: tuple[Side, Side] = Field(description="[height, width] in pixels")
    rounding: Literal["nearest", "truncate"] = Field(
        default="nearest",
        description="of the offset ``(in - out) / 2``: *nearest* (Python's ``round``, torchvision), *truncate* "
        "(``int``, Hugging Face)",
    )

    def output(self, spec: TensorSpec) -> TensorSpec:
        """(h, w, c) to (size[0], size[1], c)."""
        return spec.with_size(self.size)

    def fills(self, least_side: int) -> tuple[int | None, int]:
        """See ``Move``."""
        return 0 if max(self.size) > least_side else None, min(self.size)

    def window(self, size_hw: Size) -> Window:
        """See ``Move``."""
        top, left = map(self._offset, size_hw, self.size)
        return Window(top, left, *self.size)

    def _offset(self, side: int, cropped: int) -> int:
        if cropped > side:
            # torchvision pads (cropped - side) // 2 in front and then crops at offset 0.
            return -((cropped - side) // 2)
        return (side - cropped) // 2 if self.rounding == "truncate" else round((side - cropped) / 2.0)

    def twin(self, v2: Any) -> Any:
        """See ``Move``."""
        return v2.CenterCrop(self.size) if self.rounding == "nearest" else None


class Pad(Move):
    """Surround with one value up to a size. A larger image cannot be padded, but to a multiple where one is stated."""

    newer_fields: ClassVar[tuple[str, ...]] = ("multiple_of",)
    op: Literal["pad"] = "pad"
    size: tuple[Side, Side] = Field(description="[height, width] in pixels, at least the image's")
    value: Level = Field(default=0, description="of every channel of the border")
    align: Literal["center", "top_left"] = Field(
        default="center",
        description="where the image lies: *center*, with the odd pixel of border at the bottom or right; *top_left*",
    )
    multiple_of: tuple[Multiple, Multiple] = Field(
        default=(0, 0),
        description="[height, width]: a side that is larger than ``size`` is padded to the next multiple of this; 0 "
        "refuses the image",
    )

    def padded(self, axis: int, side: int) -> int:
        """A side of ``side`` pixels after this pad; ``side`` itself where it is too large. ``axis`` 0: the height."""
        multiple = self.multiple_of[axis]
        if side <= self.size[axis] or not multiple:
            return max(side, self.size[axis])
        return -(-side // multiple) * multiple

    def output(self, spec: TensorSpec) -> TensorSpec:
        """(h, w, c) to (size[0], size[1], c); a side that may be padded to a multiple depends on the image."""
        sides: list[int | None] = []
        for axis, seen in enumerate(spec.size_hw):
            if seen is None:
                sides.append(None if self.multiple_of[axis] else self.size[axis])
            elif seen > self.size[axis] and not self.multiple_of[axis]:
                raise ValueError(f"pad to {self.size} cannot hold an image of {spec.size_hw}")
            else:
                sides.append(self.padded(axis, seen))
        return spec.with_size((sides[0], sides[1]))

    @property
    def is_free(self) -> bool:
        """See ``Move``."""
        return any(self.multiple_of)

    def fills(self, least_side: int) -> tuple[int | None, int]:  # noqa: ARG002 (it makes its own size)
        """See ``Move``."""
        return self.value, min(self.size)

    def window(self, size_hw: Size) -> Window:
        """See ``Move``."""
        for axis, side in enumerate(size_hw):
            if side > self.size[axis] and not self.multiple_of[axis]:
                raise BadImage(
                    "too_many_pixels",
                    f"the definition pads to {self.size[1]}x{self.size[0]} pixels, which cannot hold the "
                    f"{size_hw[1]}x{size_hw[0]} of this image after the operations before",
                )
        height, width = (self.padded(axis, side) for axis, side in enumerate(size_hw))
        if self.align == "top_left":
            return Window(0, 0, height, width)
        return Window(-((height - size_hw[0]) // 2), -((width - size_hw[1]) // 2), height, width)


class Letterbox(Operation):
    """Resize into a box, keeping the aspect ratio, then pad to it: ``resize`` with *fit*, followed by ``pad``."""

    op: Literal["letterbox"] = "letterbox"
    size: tuple[Side, Side] = Field(description="[height, width] of the box in pixels")
    value: Level = Field(default=114, description="of every channel of the border")
    align: Literal["center", "top_left"] = Field(default="center", description="as of ``pad``")
    filter: Filter = Field(default="bilinear", description="as of ``resize``")
    rounding: Rounding = Field(default="nearest", description="as of ``resize``; *nearest* is what detectors do")

    def output(self, spec: TensorSpec) -> TensorSpec:
        """(h, w, c) to (size[0], size[1], c)."""
        return spec.with_size(self.size)

    def parts(self) -> tuple[Resize, Pad]:
        """The two operations that this one stands for."""
        return (
            Resize(mode="fit", size=self.size, filter=self.filter, rounding=self.rounding),
            Pad(size=self.size, value=self.value, align=self.align),
        )


Geometric = Resize | CenterCrop | Pad
"""What a letterbox is written as, too."""


def reduced(size_hw: Size, factor: int) -> Size:
    """The size of a picture that is decoded at 1/``factor`` of its own, as libjpeg rounds it."""
    return -(-size_hw[0] // factor), -(-size_hw[1] // factor)


def _interpolated(image: Image.Image, size_hw: Size) -> Image.Image:
    """Linear interpolation between the nearest pixels, whatever the scale: what Pillow's resize cannot do.

    Centres are at half coordinates, the border is repeated outwards, and a half of a level is rounded up.
    """
    levels = np.asarray(image)
    for axis, count in enumerate(size_hw):
        side = levels.shape[axis]
        places = (np.arange(count) + 0.5) * side / count - 0.5
        below = np.floor(places).astype(np.int64)
        share = (places - below).reshape([-1 if dimension == axis else 1 for dimension in range(levels.ndim)])
        first, second = (
            np.take(levels, np.clip(at, 0, side - 1), axis).astype(np.float64) for at in (below, below + 1)
        )
        levels = first + share * (second - first)
    return Image.fromarray(np.floor(levels + 0.5).astype(np.uint8))
