"""The base of all operations, and those that move no pixels: what each makes of a sample's size, type and layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

Color = Literal["rgb", "bgr", "gray"]
Filter = Literal["nearest", "nearest-exact", "bilinear", "bicubic", "lanczos"]
SUPPORT: dict[Filter, int] = {"bilinear": 1, "bicubic": 2, "lanczos": 3}
"""Source pixels that a filter reads to each side at scale 1. The nearest ones need whole-image coordinates."""
Arithmetic = Literal["pil", "aten"]
Layout = Literal["NHWC", "NCHW"]
DType = Literal["uint8", "float16", "float32"]
Rounding = Literal["truncate", "nearest", "up", "ratio", "half_up", "quotient", "quotient_down"]
MAX_SIDE_OF_OPERATION = 16384
Side = Annotated[int, Field(ge=1, le=MAX_SIDE_OF_OPERATION)]
PixelCount = Annotated[int, Field(ge=1, le=MAX_SIDE_OF_OPERATION**2)]
PatchCount = Annotated[int, Field(ge=1, le=1 << 20)]
Multiple = Annotated[int, Field(ge=0, le=1024)]
Temporal = Annotated[int, Field(ge=1, le=16)]
"""Frames of a row of patches."""
Level = Annotated[int, Field(ge=0, le=255)]
Fill = Level | tuple[Level, Level, Level]
"""What surrounds a picture: one level, or one for each channel in the order of ``color``."""
Unsigned = AfterValidator(lambda value: value + 0.0)
"""-0.0 equals 0.0, so it must not have another digest."""
ClassId = Annotated[int, Field(strict=True, ge=0)]
ClassName = Annotated[str, Field(strict=True, min_length=1)]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One sample between two operations, without a batch dimension.

    ``shape`` follows ``layout`` (``HWC`` or ``CHW``); a side of None depends on the image. An encoded image has the
    layout ``BYTES`` and the shape ``(None,)``; patches have ``ROWS`` and the shape ``(None, columns)``, tiles ``TILES``
    and ``(None, c, size, size)``.
    """

    shape: tuple[int | None, ...]
    dtype: DType
    layout: Literal["BYTES", "HWC", "CHW", "ROWS", "TILES"]

    @property
    def size_hw(self) -> tuple[int | None, int | None]:
        """(height, width) in pixels, None where it depends on the image."""
        if self.layout == "ROWS":
            return None, None
        height, width = self.shape[:2] if self.layout == "HWC" else self.shape[-2:]
        return height, width

    @property
    def channels(self) -> int:
        """Number of channels: 3 for RGB and BGR, 1 for gray."""
        channels = self.shape[2] if self.layout == "HWC" else self.shape[-3]
        assert channels is not None
        return channels

    def with_size(self, size_hw: tuple[int | None, int | None]) -> TensorSpec:
        """The same HWC sample with another size."""
        return replace(self, shape=(*size_hw, self.channels))


ENCODED = TensorSpec((None,), "uint8", "BYTES")


class Operation(BaseModel):
    """Base of the operations: frozen, no unknown fields, output stated from input."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    newer_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that older definitions have not: written only where they are not the default, so that digests stay."""

    @model_serializer(mode="wrap")
    def _state_newer_fields_where_they_matter(self, default: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = default(self)
        for name in self.newer_fields:
            if getattr(self, name) == type(self).model_fields[name].default:
                fields.pop(name, None)
        return fields

    def output(self, spec: TensorSpec) -> TensorSpec:
        """The specification of this operation's output, given its input's."""
        raise NotImplementedError


class Decode(Operation):
    """Encoded bytes to 8-bit HWC pixels."""

    newer_fields: ClassVar[tuple[str, ...]] = ("profile", "bits", "frame", "dct_scaling")
    op: Literal["decode"] = "decode"
    color: Color = Field(
        default="rgb",
        description="*bgr* is the same in the order of OpenCV: every later step, mean and std too, has blue first; "
        "*gray* is ITU-R 601 luma of the decoded RGB, as Pillow's ``convert('L')``",
    )
    orientation: Literal["apply"] = Field(default="apply", description="the EXIF orientation is applied")
    alpha: Literal["drop"] = Field(default="drop", description="transparency is ignored, colours are kept")
    profile: Literal["ignore", "srgb"] = Field(
        default="ignore",
        description="of an ICC profile in the file: *ignore* takes the values as they are, as training on PIL images "
        "does; *srgb* converts to sRGB as Pillow's ``ImageCms.profileToProfile`` does (perceptual)",
    )
    bits: int = Field(
        default=16,
        ge=8,
        le=16,
        description="how many bits of a sample of 16 bit are used: 16 keeps the high byte; 12, for cameras of 12 bit, "
        "divides by 16, and what is above is white. Below 16 such pictures must be gray",
    )
    frame: Literal["first", "error"] = Field(
        default="first", description="of a file of several pages or frames: the first, or the file is refused"
    )
    dct_scaling: bool = Field(
        default=False,
        description="*true*: JPEGs are decoded at 1/2, 1/4 or 1/8 of their size, the smallest of these that leaves "
        "both sides twice as long as after the resize, or longer: [faster for large photos]"
        "(definition.md#dct_scaling), on a CPU only. An antialiased ``resize`` or ``letterbox`` must follow",
    )

    @property
    def beyond_decoders(self) -> dict[str, str | int]:
        """What is asked for that only our own code does, by the names of the fields."""
        fields = type(self).model_fields
        return {name: getattr(self, name) for name in self.newer_fields if getattr(self, name) != fields[name].default}

    def output(self, spec: TensorSpec) -> TensorSpec:
        """Bytes to (height, width, 3 or 1)."""
        if spec.layout != "BYTES":
            raise ValueError("decode must be the first operation, and the only decode")
        return _first_pixels(self.color)


class Region(Operation):
    """A region of the decoded picture to 8-bit HWC pixels, in place of ``decode``: a stage runs once for each region.

    Regions are quadrilaterals (``quads``). What is left out, what is cut, and how, is stated in ``quads`` and
    ``backends.reference_regions``.
    """

    op: Literal["region"] = "region"
    of: str = Field(min_length=1, description="the stage whose regions these are")
    color: Color = Field(default="rgb", description="as of ``decode``")
    shape: Literal["box", "quad"] = Field(
        default="box",
        description="*box*: the smallest upright rectangle around the region is cut at whole pixels; *quad*: the "
        "region is rectified, by a perspective transform, to a rectangle of its own size",
    )
    margin: Annotated[float, Unsigned] = Field(
        default=0.0, ge=0, le=10, description="share of the region's shorter side that is added on every side"
    )
    min_side: Annotated[float, Unsigned] = Field(
        default=0.0,
        ge=0,
        le=MAX_SIDE_OF_OPERATION,
        description="a region whose shorter side has fewer pixels, before the margin, is left out",
    )
    upright: float | None = Field(
        default=None,
        ge=1,
        description="a region that is taller than wide, by this factor at least, is turned by a quarter, "
        "counterclockwise; none is without it",
    )
    classes: tuple[ClassId | ClassName, ...] = Field(
        default=(), description="ids or names of the classes whose regions are taken; all are without it"
    )
    min_score: Annotated[float, Unsigned] = Field(
        default=0.0, ge=0, le=1, description="a region to which the first stage gave a lower score is left out"
    )

    def output(self, spec: TensorSpec) -> TensorSpec:
        """A picture to (height, width, 3 or 1)."""
        if spec.layout != "BYTES":
            raise ValueError("region must be the first operation, and the only one")
        return _first_pixels(self.color)


def _first_pixels(color: Color) -> TensorSpec:
    return TensorSpec((None, None, 1 if color == "gray" else 3), "uint8", "HWC")


class Normalize(Operation):
    """``(x / scale - mean) / std`` per channel, in float32, in this order of operations."""

    newer_fields: ClassVar[tuple[str, ...]] = ("folded",)
    op: Literal["normalize"] = "normalize"
    mean: tuple[Annotated[float, Unsigned], ...] = Field(description="one value a channel, in the order of ``color``")
    std: tuple[float, ...] = Field(description="one value a channel, in the same order, above 0")
    scale: float = Field(default=255.0, gt=0, description="what divides the levels first")
    folded: bool = Field(
        default=False,
        description="*true*: ``(x - mean * scale) / (std * scale)``, whose last bits differ: as transformers' image "
        "processors of tensors do",
    )

    @field_validator("std")
    @classmethod
    def _std_is_positive(cls, std: tuple[float, ...]) -> tuple[float, ...]:
        if any(value <= 0 for value in std):
            raise ValueError(f"std must be above 0, got {std}")
        return std

    @property
    def steps(self) -> tuple[tuple[Literal["scale", "mean", "std"], npt.NDArray[np.float32]], ...]:
        """What it does, in order: *mean* is subtracted, the others divide; float32, a number or one a channel."""
        scale, mean, std = (np.array(value, np.float32) for value in (self.scale, self.mean, self.std))
        return (
            (("mean", mean * scale), ("std", std * scale))
            if self.folded
            else (("scale", scale), ("mean", mean), ("std", std))
        )

    def output(self, spec: TensorSpec) -> TensorSpec:
        """uint8 HWC to float32 HWC."""
        if spec.dtype != "uint8":
            raise ValueError("normalize must come once")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != spec.channels:
                raise ValueError(f"normalize.{name} has {len(values)} values for {spec.channels} channels")
        return replace(spec, dtype="float32")


class Output(Operation):
    """Layout and dtype that the network receives. Must be the last operation; float32 NCHW where it is left out."""

    op: Literal["output"] = "output"
    layout: Layout = Field(default="NCHW", description="order of the dimensions: batch, channels, height, width")
    dtype: DType = Field(default="float32", description="*uint8* goes without ``normalize`` only")

    def output(self, spec: TensorSpec) -> TensorSpec:
        """HWC to the network's layout and dtype."""
        if spec.dtype == "float32" and self.dtype == "uint8":
            raise ValueError("output.dtype uint8 cannot follow normalize; it accepts float32 or float16")
        height, width = spec.size_hw
        if self.layout == "NHWC":
            return TensorSpec((height, width, spec.channels), self.dtype, "HWC")
        return TensorSpec((spec.channels, height, width), self.dtype, "CHW")
