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

from onestream.preprocess.errors import say_once
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.video.common.tone import Hdr, tone_mapped, tone_mapped_reference

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Matrix = Literal["bt601", "bt709", "bt2020"]
Range = Literal["limited", "full"]
Origin = Literal["file", "chosen", "assumed"]
Transfer = Literal["sdr", "pq", "hlg"]
Pixels = npt.NDArray[np.uint8]

_LUMA: dict[Matrix, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
}
"""Kr and Kb of ITU-R BT.601-7 (2.5.1), BT.709-6 (3.2) and BT.2020-2 (table 4, non-constant luminance)."""

_TAGS: dict[int, Matrix] = {1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 9: "bt2020"}
"""MatrixCoefficients of ITU-T H.273 (table 4); 4 is FCC's, whose values are BT.601's within 0.001."""

_TAG_OF: dict[Matrix, int] = {"bt601": 6, "bt709": 1, "bt2020": 9}
UNSPECIFIED = 2
_HDR: dict[int, Hdr] = {16: "pq", 18: "hlg"}
"""TransferCharacteristics of H.273 (table 3) of HDR."""
FRACTION_BITS = 16

_FORMATS: dict[str, tuple[int, int, int]] = {
    f"yuv{name}{suffix}": (*shifts, depth)
    for name, shifts in {"420p": (1, 1), "422p": (0, 1), "440p": (1, 0), "444p": (0, 0)}.items()
    for suffix, depth in {"": 8, "10le": 10}.items()
} | {"yuvj420p": (1, 1, 8), "yuvj422p": (0, 1, 8), "yuvj440p": (1, 0, 8), "yuvj444p": (0, 0, 8)}
"""By FFmpeg's name: log2 of the chroma's vertical and horizontal subsampling, and the bits of a sample."""

RANGE_TAGS: dict[bool | None, int] = {None: 0, False: 1, True: 2}
"""FFmpeg's AVColorRange for ``full_range``."""

_FULL_RANGE = {tag: full_range for full_range, tag in RANGE_TAGS.items()}


@dataclass(frozen=True, slots=True)
class Colors:
    """The matrix and the range by which a picture becomes RGB, and where each comes from.

    *file*: the video is tagged so, in its container or its codec's header. *chosen*: the ``ColorRule`` names it.
    *assumed*: neither says anything. FFmpeg always finds the range of HEVC, VP9 and AV1 in the codec's header.
    ``transfer`` is the file's, and ``is_mapped`` whether HDR is mapped to SDR (``tone``); else its values are taken as
    if they were SDR's.
    """

    matrix: Matrix
    range: Range
    matrix_from: Origin
    range_from: Origin
    transfer: Transfer = "sdr"
    is_mapped: bool = False

    @property
    def matrix_tag(self) -> int:
        """MatrixCoefficients of H.273 for the matrix."""
        return _TAG_OF[self.matrix]

    @property
    def is_full_range(self) -> bool:
        """Whether samples use all levels."""
        return self.range == "full"

    def __str__(self) -> str:
        transfer = "" if self.transfer == "sdr" else f", {self.transfer} ({'mapped' if self.is_mapped else 'as SDR'})"
        return f"{self.matrix} ({self.matrix_from}), {self.range} ({self.range_from}){transfer}"

    def to_dict(self) -> dict[str, str]:
        """Plain values, ready for JSON; of HDR ``transfer``, and as ``transfer_as`` whether it is *mapped* or *sdr*."""
        said = {name: str(getattr(self, name)) for name in ("matrix", "range", "matrix_from", "range_from")}
        if self.transfer != "sdr":
            said |= {"transfer": self.transfer, "transfer_as": "mapped" if self.is_mapped else "sdr"}
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class ColorRule:
    """The rule by which YUV becomes RGB.

    ``matrix`` and ``range`` *auto* take what the video says. Where it says nothing, the matrix is BT.601 at any size,
    as in PyAV, OpenCV, decord and torchcodec, with which networks are trained; the range is limited, the default of
    H.264 and HEVC (video_full_range_flag inferred 0). ``transfer`` *ignore* takes HDR (PQ, HLG) as if it were SDR,
    which is said once; *sdr* maps it to SDR as ``tone`` says. Raises ``ValueError`` for other values.
    """

    matrix: Literal["auto", "bt601", "bt709", "bt2020"] = "auto"
    range: Literal["auto", "limited", "full"] = "auto"
    chroma: Literal["nearest"] = "nearest"
    transfer: Literal["ignore", "sdr"] = "ignore"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("matrix", ("auto", *get_args(Matrix))),
            ("range", ("auto", *get_args(Range))),
            ("chroma", ("nearest",)),
            ("transfer", ("ignore", "sdr")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}")

    def resolve(self, *, matrix_tag: int, full_range: bool | None, transfer_tag: int = UNSPECIFIED) -> Colors:
        """The colours of a picture with these tags.

        ``matrix_tag`` and ``transfer_tag``: H.273's MatrixCoefficients and TransferCharacteristics; ``full_range``
        None: not tagged. Raises ``ValueError`` for a tag of an unknown matrix.
        """
        matrix, matrix_from = self._matrix(matrix_tag)
        hdr = _HDR.get(transfer_tag)
        if hdr is not None and self.transfer == "ignore":
            say_once(f"a video is HDR ({hdr}), and its values are taken as if they were SDR's (color.transfer: ignore)")
        shown: tuple[Transfer, bool] = (hdr or "sdr", hdr is not None and self.transfer == "sdr")
        if self.range != "auto":
            return Colors(matrix, self.range, matrix_from, "chosen", *shown)
        range_from: Origin = "assumed" if full_range is None else "file"
        return Colors(matrix, "full" if full_range else "limited", matrix_from, range_from, *shown)

    def mapped(self, transfer_tag: int) -> Hdr | None:
        """The HDR of pictures with this tag, where it is mapped to SDR."""
        return _HDR.get(transfer_tag) if self.transfer == "sdr" else None

    def _matrix(self, tag: int) -> tuple[Matrix, Origin]:
        if self.matrix != "auto":
            return self.matrix, "chosen"
        if tag == UNSPECIFIED:
            return "bt601", "assumed"
        if tag not in _TAGS:
            raise ValueError(
                f"is tagged with matrix coefficients {tag}, which 'auto' cannot convert; "
                f"choose matrix {', '.join(get_args(Matrix))}"
            )
        return _TAGS[tag], "file"


@dataclass(frozen=True, slots=True)
class Planes:
    """A frame in YUV: ``y`` (height, ≥ width), ``u`` and ``v`` smaller by the shifts (log2), rows may be padded.

    Samples are uint8 for a ``depth`` of 8 bits, else uint16. ``matrix_tag`` and ``transfer_tag`` are H.273's;
    ``full_range`` is None where the video does not say it.
    """

    y: npt.NDArray[Any]
    u: npt.NDArray[Any]
    v: npt.NDArray[Any]
    size_hw: Size
    shifts: tuple[int, int]
    depth: int
    matrix_tag: int
    full_range: bool | None
    transfer_tag: int = UNSPECIFIED


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
    full = True if name.startswith("yuvj") else _FULL_RANGE.get(int(frame.color_range))
    size_hw = (frame.height, frame.width)
    transfer_tag = int(frame.color_trc)
    return Planes(y, u, v, size_hw, (vertical, horizontal), depth, int(frame.colorspace), full, transfer_tag)


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


def resolved(planes: Planes, rule: ColorRule) -> Colors:
    """The colours of a frame. Raises ``ValueError`` where ``rule`` cannot be resolved."""
    return rule.resolve(matrix_tag=planes.matrix_tag, full_range=planes.full_range, transfer_tag=planes.transfer_tag)


def to_rgb(planes: Planes, rule: ColorRule, window: Window | None = None) -> Pixels:
    """(height, width, 3) uint8 RGB of a window of a frame, by default of all of it; compiled by Numba.

    Raises ``ValueError`` where ``rule`` cannot be resolved.
    """
    from onestream.preprocess.video.common.color_kernels import yuv_to_rgb

    window, factors = prepared(planes, rule, window)
    out = np.empty((window.height, window.width, 3), np.uint8)
    y, u, v = (np.ascontiguousarray(plane) for plane in (planes.y, planes.u, planes.v))
    yuv_to_rgb(y, u, v, out, window.top, window.left, *planes.shifts, factors)
    hdr = rule.mapped(planes.transfer_tag)
    return out if hdr is None else tone_mapped(out, hdr)


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
    levels = np.stack([np.clip(channel >> bits, 0, 255).astype(np.uint8) for channel in channels], axis=2)
    hdr = rule.mapped(planes.transfer_tag)
    return levels if hdr is None else tone_mapped_reference(levels, hdr)


def prepared(planes: Planes, rule: ColorRule, window: Window | None) -> tuple[Window, npt.NDArray[np.int32]]:
    """The window, by default the whole frame, and the ``coefficients`` of a conversion.

    Raises ``ValueError`` where ``rule`` cannot be resolved.
    """
    colors = resolved(planes, rule)
    return window or Window(0, 0, *planes.size_hw), coefficients(colors.matrix, colors.range, planes.depth)
