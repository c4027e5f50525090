"""YUV to RGB in 8 bit: the matrix, the range and the chroma are chosen, not left to a library.

Samples are converted at their full depth with integers, 16 fractional bits, and only the result is rounded to 8 bit:
half up. Chroma is *nearest*: a subsampled chroma value belongs to all the pixels that share it, with no interpolation,
which is what swscale does by default when it converts without scaling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from onestream.preprocess.geometry import Size, Window

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Matrix = Literal["bt601", "bt709", "bt2020"]
Range = Literal["limited", "full"]
Pixels = npt.NDArray[np.uint8]

_LUMA: dict[Matrix, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
}
"""Kr and Kb of ITU-R BT.601-7 (2.5.1), BT.709-6 (3.2) and BT.2020-2 (table 4, non-constant luminance)."""

_TAGS: dict[int, Matrix] = {1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 9: "bt2020"}
"""MatrixCoefficients of ITU-T H.273 (table 4); 4 is FCC's, whose values are BT.601's within 0.001."""

UNSPECIFIED = 2
HD_HEIGHT = 720
FRACTION_BITS = 16

_FORMATS: dict[str, tuple[int, int, int]] = {
    f"yuv{name}{suffix}": (*shifts, depth)
    for name, shifts in {"420p": (1, 1), "422p": (0, 1), "440p": (1, 0), "444p": (0, 0)}.items()
    for suffix, depth in {"": 8, "10le": 10}.items()
} | {"yuvj420p": (1, 1, 8), "yuvj422p": (0, 1, 8), "yuvj440p": (1, 0, 8), "yuvj444p": (0, 0, 8)}
"""By FFmpeg's name: log2 of the chroma's vertical and horizontal subsampling, and the bits of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColorRule:
    """The rule by which YUV becomes RGB.

    ``matrix`` and ``range`` *auto* take what the stream says. Where it says nothing, the matrix is BT.709 from a height
    of 720 pixels on and BT.601 below, as these standards were made for HD and SD; the range is limited, the default of
    H.264 and HEVC (video_full_range_flag inferred 0). Raises ``ValueError`` for other values.
    """

    matrix: Literal["auto", "bt601", "bt709", "bt2020"] = "auto"
    range: Literal["auto", "limited", "full"] = "auto"
    chroma: Literal["nearest"] = "nearest"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("matrix", ("auto", *get_args(Matrix))),
            ("range", ("auto", *get_args(Range))),
            ("chroma", ("nearest",)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}")

    def resolve(self, *, matrix_tag: int, full_range: bool, height: int) -> tuple[Matrix, Range]:
        """The matrix and range of a frame of ``height`` pixels whose stream carries these tags.

        ``matrix_tag``: H.273's MatrixCoefficients. Raises ``ValueError`` for a tag of an unknown matrix.
        """
        matrix, tagged = self.matrix, _TAGS.get(matrix_tag)
        if matrix == "auto" and matrix_tag == UNSPECIFIED:
            tagged = "bt709" if height >= HD_HEIGHT else "bt601"
        if matrix == "auto":
            if tagged is None:
                raise ValueError(
                    f"is tagged with matrix coefficients {matrix_tag}, which 'auto' cannot convert; "
                    f"choose matrix {', '.join(get_args(Matrix))}"
                )
            matrix = tagged
        if self.range != "auto":
            return matrix, self.range
        return matrix, "full" if full_range else "limited"


@dataclass(frozen=True, slots=True)
class Planes:
    """A frame in YUV: ``y`` (height, ≥ width), ``u`` and ``v`` smaller by the shifts (log2), rows may be padded.

    Samples are uint8 for a ``depth`` of 8 bits, else uint16. ``matrix_tag`` is H.273's.
    """

    y: npt.NDArray[Any]
    u: npt.NDArray[Any]
    v: npt.NDArray[Any]
    size_hw: Size
    shifts: tuple[int, int]
    depth: int
    matrix_tag: int
    full_range: bool


def planes_of(frame: VideoFrame) -> Planes:
    """The planes of a decoded frame, not copied. Raises ``ValueError`` naming a pixel format that is not supported."""
    name = frame.format.name
    if name not in _FORMATS:
        raise ValueError(f"has the pixel format {name}; supported are {', '.join(_FORMATS)}")
    vertical, horizontal, depth = _FORMATS[name]
    dtype = np.dtype(np.uint8 if depth == 8 else np.uint16)
    y, u, v = (
        np.frombuffer(memoryview(plane), dtype, count=plane.height * plane.line_size // dtype.itemsize).reshape(
            plane.height, -1
        )
        for plane in frame.planes
    )
    full = name.startswith("yuvj") or int(frame.color_range) == 2
    size_hw = (frame.height, frame.width)
    return Planes(y, u, v, size_hw, (vertical, horizontal), depth, int(frame.colorspace), full)


@lru_cache
def coefficients(matrix: Matrix, range: Range, depth: int) -> npt.NDArray[np.int32]:
    """(luma, V to red, U to green, V to green, U to blue, luma offset, chroma offset, bits to drop); not to be changed.

    The first five are multiplied with samples from which the offsets are taken; the sum of the products, plus half,
    shifted right by the last, is a level of 0 to 255.
    """
    red, blue = _LUMA[matrix]
    green = 1.0 - red - blue
    step = 1 << depth - 8
    luma_steps, chroma_steps = (219 * step, 224 * step) if range == "limited" else ((1 << depth) - 1,) * 2
    bits = FRACTION_BITS + depth - 8
    to_level = 255.0 * (1 << bits)
    chroma = to_level / chroma_steps
    factors = (
        to_level / luma_steps,
        chroma * 2 * (1 - red),
        -chroma * 2 * (1 - blue) * blue / green,
        -chroma * 2 * (1 - red) * red / green,
        chroma * 2 * (1 - blue),
    )
    offsets = (16 * step if range == "limited" else 0, 128 * step, bits)
    return np.array([*(round(factor) for factor in factors), *offsets], np.int32)


def to_rgb(planes: Planes, rule: ColorRule, window: Window | None = None) -> Pixels:
    """(height, width, 3) uint8 RGB of a window of a frame, by default of all of it; compiled by Numba.

    Raises ``ValueError`` where ``rule`` cannot be resolved.
    """
    from onestream.preprocess.video.common.color_kernels import yuv_to_rgb

    window, factors = prepared(planes, rule, window)
    out = np.empty((window.height, window.width, 3), np.uint8)
    y, u, v = (np.ascontiguousarray(plane) for plane in (planes.y, planes.u, planes.v))
    yuv_to_rgb(y, u, v, out, window.top, window.left, *planes.shifts, factors)
    return out


def to_rgb_reference(planes: Planes, rule: ColorRule, window: Window | None = None) -> Pixels:
    """The same in NumPy: the specification of ``to_rgb``, equal in every bit."""
    window, factors = prepared(planes, rule, window)
    luma, v_red, u_green, v_green, u_blue, y_offset, c_offset, bits = (int(factor) for factor in factors)
    rows = np.arange(window.top, window.top + window.height)[:, None]
    columns = np.arange(window.left, window.left + window.width)[None, :]
    y = (planes.y[rows, columns].astype(np.int32) - y_offset) * luma + (1 << bits - 1)
    rows, columns = rows >> planes.shifts[0], columns >> planes.shifts[1]
    u = planes.u[rows, columns].astype(np.int32) - c_offset
    v = planes.v[rows, columns].astype(np.int32) - c_offset
    channels = (y + v_red * v, y + u_green * u + v_green * v, y + u_blue * u)
    levels = [np.clip(channel >> bits, 0, 255).astype(np.uint8) for channel in channels]
    return np.stack(levels, axis=2)


def prepared(planes: Planes, rule: ColorRule, window: Window | None) -> tuple[Window, npt.NDArray[np.int32]]:
    """The window, by default the whole frame, and the ``coefficients`` of a conversion.

    Raises ``ValueError`` where ``rule`` cannot be resolved.
    """
    matrix, range_ = rule.resolve(matrix_tag=planes.matrix_tag, full_range=planes.full_range, height=planes.size_hw[0])
    return window or Window(0, 0, *planes.size_hw), coefficients(matrix, range_, planes.depth)
