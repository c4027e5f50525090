"""The operations that keep a window of a picture, of which some may be filled, and the base of all that move pixels.

The rounding is torchvision's: the crop offset is ``int(round((in - out) / 2.0))`` with Python's half-to-even rounding,
and a smaller image is padded first.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from PIL import Image
from pydantic import Field

from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.operations.base import Fill, Multiple, Operation, Side, TensorSpec


class Move(Operation):
    """Base of the operations that move pixels. They resize, or keep a window, of which some may be filled."""

    @property
    def is_free(self) -> bool:
        """Whether the size after it may follow from the image's, so that limits judge it (``Limits.check_resized``)."""
        return False

    def fills(self, least_side: int) -> tuple[Fill | None, int]:
        """The levels with which it may fill, None for none, and a lower bound of both sides after it.

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
        levels = fill if isinstance(fill, tuple) else (fill or 0,) * len(image.getbands())
        canvas = Image.new(image.mode, (window.width, window.height), levels)
        canvas.paste(image, (-window.left, -window.top))
        return canvas

    def twin(self, v2: Any) -> Any:  # noqa: ARG002 (the base has none)
        """The same of ``torchvision.transforms.v2``, which is given; None where it has none."""
        return None


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

    def fills(self, least_side: int) -> tuple[Fill | None, int]:
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
    value: Fill = Field(
        default=0,
        description="of the border: one level for every channel, or one for each, in the order of ``color``; an "
        "augmentation fills with their mean",
    )
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
        if isinstance(self.value, tuple) and len(self.value) != spec.channels:
            raise ValueError(f"value has {len(self.value)} levels for {spec.channels} channel")
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

    def fills(self, least_side: int) -> tuple[Fill | None, int]:  # noqa: ARG002 (it makes its own size)
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
