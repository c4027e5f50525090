"""The operations that resize. As those of ``operations.windows`` they have their sizes, what they fill with, their
specification and torchvision's twin.

The proportional side is truncated as torchvision does (``_compute_resized_output_size``) where nothing else is stated.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import (
    Size,
    Small,
    bounded,
    capped,
    even_sides,
    interpolated,
    proportional,
    reduced,
    within_area,
    within_patches,
)
from onestream.preprocess.operations import (
    Arithmetic,
    Fill,
    Filter,
    Operation,
    PatchCount,
    PixelCount,
    Rounding,
    Side,
    Temporal,
    TensorSpec,
)
from onestream.preprocess.operations.windows import CenterCrop, Move, Pad

__all__ = ["CenterCrop", "Geometric", "Letterbox", "Move", "Pad", "Resize"]


class Resize(Move):
    """Resample to a new size, antialiased, with half-pixel centres, rounding to 8 bit."""

    newer_fields: ClassVar[tuple[str, ...]] = (
        "size", "max_size", "min_pixels", "max_pixels", "small", "temporal", "cap_pixels", "max_patches",
        "multiple_of", "multiples", "enlarge", "shrink", "arithmetic",
    )  # fmt: skip
    op: Literal["resize"] = "resize"
    mode: Literal["shorter", "longer", "exact", "fit", "height", "area", "patches"] = Field(
        description="*shorter*, *longer*: scale that side to ``size`` and the other in proportion; *exact*: to "
        "``size``; *fit*: into the box ``size``, which the result fills in one side; *height*: to that height, the "
        "width in proportion, but squeezed where it would be above the most that ``size`` allows; *area*: to multiples "
        "of ``multiple_of`` with ``min_pixels`` to ``max_pixels``, as Qwen2-VL (an aspect ratio above 200 is refused); "
        "*patches*: to the largest multiples with ``max_patches`` squares of ``multiple_of`` or fewer (SigLIP2-NaFlex)"
    )
    size: Side | tuple[Side, Side] | None = Field(
        default=None,
        description="one side in pixels for *shorter* and *longer*, [height, width] for *exact* and *fit*, "
        "[height, most width] for *height*, none for *area* and *patches*",
    )
    max_size: Side | None = Field(
        default=None,
        description="with *shorter* only: the most of the longer side; where it would be longer, it becomes this and "
        "the other in proportion (DETR: 800 and 1333)",
    )
    min_pixels: PixelCount | None = Field(default=None, description="height x width of *area*, at least")
    max_pixels: PixelCount | None = Field(default=None, description="the same, at most; rounding up may pass it")
    small: Small = Field(
        default="keep",
        description="what a side of fewer pixels than ``multiple_of`` does first, with *area*: *keep*, nothing "
        "(Qwen2-VL); *together*, both sides grow by one factor and are truncated (GLM-4V, Qwen3-VL's videos); *each*, "
        "the height, then the width becomes ``multiple_of``, and the other grows in proportion (PaddleOCR-VL)",
    )
    temporal: Temporal | None = Field(
        default=None,
        description="``min_pixels`` and ``max_pixels`` count those of all frames: of so many for a picture, of a "
        "video's frames, rounded to a multiple of this (GLM-4V, Qwen3-VL's videos). Without it they are of one frame",
    )
    cap_pixels: PixelCount | None = Field(
        default=None,
        description="with *area*, for videos: one more bound, of all frames together, or of one where ``temporal`` is "
        "stated. A frame then has at most its share of the bound of all, but 1.05 ``min_pixels`` or more "
        "(``cap_pixels_per_frame`` of Qwen2-VL and Qwen3-VL)",
    )
    max_patches: PatchCount | None = Field(default=None, description="of *patches*")
    multiple_of: Side = Field(
        default=1,
        description="each side, once it was rounded, becomes a multiple of this, at least one; ``size`` is one itself. "
        "Not with *exact* and *height*",
    )
    multiples: Literal["nearest", "up"] = Field(
        default="nearest",
        description="which multiple: the nearest, of a half the even one, or the next (Pixtral). With *shorter*, "
        "*longer* and *fit* only",
    )
    enlarge: bool = Field(
        default=True,
        description="*false*: a picture that would grow keeps its size, before ``multiple_of``. With *shorter*, "
        "*longer* and *fit* only",
    )
    shrink: bool = Field(
        default=True,
        description="*false*: a picture that would shrink keeps its size, before ``multiple_of`` (PaddleOCR's "
        "``limit_type: min``). Likewise, and not with ``enlarge`` *false*",
    )
    filter: Filter = Field(
        default="bilinear",
        description="Pillow's filters, or PyTorch's of these names; *bilinear* is the triangle. *nearest-exact* goes "
        "with ``arithmetic`` *aten* only",
    )
    arithmetic: Arithmetic = Field(
        default="pil",
        description="*pil*: every bit is Pillow's; *aten*: every bit is that of PyTorch's resize of uint8 tensors on a "
        "CPU, as torchvision and transformers call it (definition.md#the-arithmetic-of-a-resize)",
    )
    antialias: bool = Field(
        default=True,
        description="*false*, with *bilinear* only, interpolates between the four nearest pixels even where the image "
        "shrinks, as OpenCV's INTER_LINEAR does",
    )
    rounding: Rounding | Literal["detr", "even"] = Field(
        default="truncate",
        description="of the proportional side: *truncate* (``int``, torchvision), *nearest* (Python's ``round`` of the "
        "exact quotient), *up* (the next whole number), *ratio* (``round(side * (size / other))`` in floats, which may "
        "miss a half that *nearest* meets: ultralytics), *half_up* (``int(side * (size / other) + 0.5)``: mmcv), "
        "*quotient* (``round(side / (other / size))``: timm), *quotient_down* (``int`` of it: Pixtral); with "
        "``max_size`` only *detr* (rounds the shorter side, truncates the longer: transformers' DETR); with *longer* "
        "only *even* (truncates, then up to an even number: transformers' Idefics3)",
    )

    @model_validator(mode="after")
    def _size_suits_mode(self) -> Resize:
        bounds = self.min_pixels, self.max_pixels
        needs = {"area": ("min_pixels", "max_pixels"), "patches": ("max_patches",)}.get(self.mode, ("size",))
        given = [
            name for name in ("size", "min_pixels", "max_pixels", "max_patches") if getattr(self, name) is not None
        ]
        if [*needs] != given:
            raise ValueError(
                f"resize mode {self.mode!r} takes {' and '.join(needs)}, and no other bounds; got size {self.size}, "
                f"bounds in pixels {bounds} and max_patches {self.max_patches}"
            )
        for name in ("small", "temporal", "cap_pixels"):
            if self.mode != "area" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} goes with mode 'area' only, got mode {self.mode!r}")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels must be at most max_pixels, got {bounds}")
        one_side = self.mode in ("shorter", "longer")
        if self.size is not None and one_side != isinstance(self.size, int):
            raise ValueError(
                f"resize mode {self.mode!r} takes {'one side in pixels' if one_side else '[height, width]'}, "
                f"got size {self.size!r}"
            )
        return self

    @model_validator(mode="after")
    def _bounds_suit(self) -> Resize:
        of_multiples = ("multiples", "enlarge", "shrink")
        refused = dict.fromkeys(("exact", "height"), ("multiple_of", *of_multiples))
        for name in (refused | dict.fromkeys(("area", "patches"), of_multiples)).get(self.mode, ()):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"resize mode {self.mode!r} takes no {name}; shorter, longer and fit do")
        sides = self.size if isinstance(self.size, tuple) else (self.size or 0, self.max_size or 0)
        if any(side % self.multiple_of for side in sides):
            shown = f"size {self.size!r}" + (f" and max_size {self.max_size}" if self.max_size else "")
            raise ValueError(f"size must be a multiple of multiple_of {self.multiple_of}, got {shown}")
        if self.max_size is not None and (not isinstance(self.size, int) or self.mode != "shorter"):
            raise ValueError(f"max_size goes with mode 'shorter' only, got mode {self.mode!r}")
        if self.max_size is not None and isinstance(self.size, int) and self.max_size < self.size:
            raise ValueError(f"max_size must be at least size {self.size}, got {self.max_size}")
        if self.rounding == "detr" and self.max_size is None:
            raise ValueError("rounding 'detr' goes with max_size only; add it")
        if self.rounding == "even" and self.mode != "longer":
            raise ValueError(f"rounding 'even' goes with mode 'longer' only, got mode {self.mode!r}")
        if not self.enlarge and not self.shrink:
            raise ValueError("enlarge and shrink are both false, so that nothing is resized: leave the resize out")
        return self

    @model_validator(mode="after")
    def _filter_suits(self) -> Resize:
        if not self.antialias and self.filter != "bilinear":
            raise ValueError(f"antialias false goes with filter 'bilinear' only, got filter {self.filter!r}")
        if self.arithmetic == "pil" and self.filter == "nearest-exact":
            raise ValueError("filter 'nearest-exact' goes with arithmetic 'aten' only; Pillow's is 'nearest'")
        if self.arithmetic == "aten" and not self.antialias:
            raise ValueError("antialias false goes with arithmetic 'pil' only, got arithmetic 'aten'")
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

    def fills(self, least_side: int) -> tuple[Fill | None, int]:  # noqa: ARG002 (it makes its own size)
        """See ``Move``."""
        if isinstance(self.size, int):
            return None, self.size if self.mode == "shorter" and self.enlarge and self.max_size is None else 1
        return None, min(self.size) if self.size and self.mode == "exact" else self.multiple_of

    def resized(self, size_hw: Size, frames: int | None = None) -> Size:
        """See ``Move``; every side is at least 1. ``frames`` are those of a video, None for a picture.

        Raises ``BadImage`` where *area* refuses it, and where *quotient_down* leaves nothing of a side.
        """
        height, width = self._scaled(*size_hw, frames)
        if self.rounding == "quotient_down" and min(height, width) < 1:
            raise BadImage(
                "too_many_pixels", f"nothing is left of the shorter side of {size_hw[1]}x{size_hw[0]} pixels"
            )
        grows, shrinks = height > size_hw[0] or width > size_hw[1], height < size_hw[0] or width < size_hw[1]
        if (grows and not self.enlarge) or (shrinks and not self.shrink):
            height, width = size_hw
        return self._multiple(height), self._multiple(width)

    def _multiple(self, side: int) -> int:
        count = -(-side // self.multiple_of) if self.multiples == "up" else round(side / self.multiple_of)
        return max(1, count) * self.multiple_of

    def _scaled(self, height: int, width: int, frames: int | None) -> Size:
        size = self.size
        if self.max_patches is not None:
            return within_patches((height, width), self.multiple_of, self.max_patches)
        if size is None:
            return self._within_area((height, width), frames)
        if isinstance(size, int):
            if self.max_size is not None:
                short, long = bounded(size, self.max_size, sorted((height, width)), self.rounding)
                return (short, long) if height < width else (long, short)
            if self.rounding == "even":
                return even_sides(size, (height, width))
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

    def _within_area(self, size_hw: Size, frames: int | None) -> Size:
        least, most, temporal = self.min_pixels or 1, self.max_pixels or 1, self.temporal or 1
        frames = frames or temporal
        if self.cap_pixels is not None:
            most = capped(least, most, self.cap_pixels, frames, counts_frames=self.temporal is not None)
        return within_area(
            size_hw, self.multiple_of, least, most, small=self.small, temporal=temporal,
            frames=frames if self.temporal else 1,
        )  # fmt: skip

    def _proportional(self, size: int, side: int, scaled_side: int) -> int:
        return proportional(size, side, scaled_side, self.rounding)

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
            return Image.fromarray(interpolated(np.asarray(image), (height, width)))
        if self.arithmetic == "aten":
            from onestream.preprocess.cpu.aten import resized  # serving runs compiled loops

            return Image.fromarray(resized(np.asarray(image), (height, width), self.filter))
        return image.resize((width, height), Image.Resampling[self.filter.upper()])

    def twin(self, v2: Any) -> Any:
        """See ``Move``."""
        if not self.antialias or self.multiple_of > 1 or not self.enlarge or not self.shrink:
            return None
        if self.mode != "exact" and (self.mode != "shorter" or self.rounding != "truncate"):
            return None
        if self.max_size == self.size:
            return None  # torchvision's must be larger
        filter = v2.InterpolationMode(self.filter)
        resize = v2.Resize(self.size, interpolation=filter, max_size=self.max_size, antialias=True)
        return v2.Compose([v2.PILToTensor(), resize, v2.ToPILImage()]) if self.arithmetic == "aten" else resize


class Letterbox(Operation):
    """Resize into a box, keeping the aspect ratio, then pad to it: ``resize`` with *fit*, followed by ``pad``."""

    newer_fields: ClassVar[tuple[str, ...]] = ("arithmetic",)
    op: Literal["letterbox"] = "letterbox"
    size: tuple[Side, Side] = Field(description="[height, width] of the box in pixels")
    value: Fill = Field(default=114, description="as of ``pad``")
    align: Literal["center", "top_left"] = Field(default="center", description="as of ``pad``")
    filter: Filter = Field(default="bilinear", description="as of ``resize``")
    arithmetic: Arithmetic = Field(default="pil", description="as of ``resize``")
    rounding: Rounding = Field(default="nearest", description="as of ``resize``; *nearest* is what detectors do")

    def output(self, spec: TensorSpec) -> TensorSpec:
        """(h, w, c) to (size[0], size[1], c)."""
        return self.parts()[1].output(spec.with_size(self.size))

    def parts(self) -> tuple[Resize, Pad]:
        """The two operations that this one stands for."""
        return (
            Resize(mode="fit", size=self.size, filter=self.filter, rounding=self.rounding, arithmetic=self.arithmetic),
            Pad(size=self.size, value=self.value, align=self.align),
        )


Geometric = Resize | CenterCrop | Pad
"""What a letterbox is written as, too."""
