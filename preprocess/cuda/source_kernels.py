"""What kernels read pictures from, as CUDA source: RGB as decoders leave it, or YUV as NVDEC does.

A kernel asks for pixels of the picture as displayed and gets levels of RGB, so that a video's picture is never stored
as RGB: the sums are those of ``video/common/color.py`` with integers, equal in every bit. Signed shifts are arithmetic,
as in NumPy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

WORK = np.dtype(
    [
        ("source", np.uint64),
        ("target", np.uint64),
        ("rows", np.uint64),
        ("columns", np.uint64),
        ("source_pitch", np.int64),
        ("target_pitch", np.int64),
        ("height", np.int32),
        ("width", np.int32),
        ("channels", np.uint8),
        ("to_bgr", np.bool_),
        ("columns_first", np.bool_),
        ("yuv", np.uint64),
        ("top", np.int32),
        ("left", np.int32),
        ("source_height", np.int32),
        ("source_width", np.int32),
    ],
    align=True,
)
"""``Work`` of the source. Pitches are bytes from row to row; ``height`` and ``width`` are the target's, in pixels.

``to_bgr``: three channels are written in reverse order. ``columns_first``: the first of two passes goes along the
columns. What follows is of a resize: of the picture at ``source`` it reads ``source_height`` x ``source_width`` pixels
from (``top``, ``left``) on; ``yuv`` is 0 for RGB, or the address of its ``YUV``.
"""

YUV = np.dtype(
    [
        *((name, np.int32) for name in ("u", "v", "pitch", "step", "shift_down", "shift_across", "unused_bits")),
        *((name, np.int32) for name in ("wide", "luma", "v_red", "u_green", "v_green", "u_blue", "y_offset")),
        *((name, np.int32) for name in ("c_offset", "bits", "height", "width")),
        ("down", np.int32, 3),
        ("across", np.int32, 3),
    ],
    align=True,
)
"""``Yuv`` of the source: ``YuvFormat``."""


class YuvFormat(NamedTuple):
    """How a YUV picture lies in memory, becomes RGB and is turned; ``source_kernels.YUV`` field by field.

    ``u`` and ``v`` are offsets in bytes from the first sample; all planes have the same ``pitch`` in bytes; ``step``
    samples lie between two of U. ``wide``: samples have 16 bits, of which the lower ``unused_bits`` are none. Then the
    factors of ``color.coefficients``, and the size as displayed. ``down`` and ``across`` lead from there to the stored
    picture: a number, and what is added for each row and for each column.
    """

    u: int
    v: int
    pitch: int
    step: int
    shift_down: int
    shift_across: int
    unused_bits: int
    wide: bool
    luma: int
    v_red: int
    u_green: int
    v_green: int
    u_blue: int
    y_offset: int
    c_offset: int
    bits: int
    height: int
    width: int
    down: tuple[int, int, int]
    across: tuple[int, int, int]


SOURCE = r"""
struct Yuv {
    int u, v, pitch, step, shift_down, shift_across, unused_bits, wide;
    int luma, v_red, u_green, v_green, u_blue, y_offset, c_offset, bits;
    int height, width, down[3], across[3];
};

struct Work {
    const unsigned char *source;
    unsigned char *target;
    const void *rows, *columns;
    long long source_pitch, target_pitch;
    int height, width;
    unsigned char channels;
    bool to_bgr, columns_first;
    const Yuv *yuv;
    int top, left, source_height, source_width;
};

__device__ int level_of(int value)
{
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

// Pillow's conversion of RGB to L (L24 in Convert.c).
__device__ int gray_level(int red, int green, int blue)
{
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

__device__ int sample_of(const Yuv &yuv, const unsigned char *samples, int place)
{
    return yuv.wide ? __ldg((const unsigned short *)samples + place) >> yuv.unused_bits : __ldg(samples + place);
}

__device__ void yuv_pixel(const Yuv &yuv, const unsigned char *source, int row, int column, int *levels)
{
    const int down = yuv.down[0] + yuv.down[1] * row + yuv.down[2] * column;
    const int across = yuv.across[0] + yuv.across[1] * row + yuv.across[2] * column;
    const int pitch = yuv.pitch >> yuv.wide;
    const int at = (down >> yuv.shift_down) * pitch + (across >> yuv.shift_across) * yuv.step;
    const int y = sample_of(yuv, source, down * pitch + across) - yuv.y_offset;
    const int u = sample_of(yuv, source + yuv.u, at) - yuv.c_offset;
    const int v = sample_of(yuv, source + yuv.v, at) - yuv.c_offset;
    const int from_y = y * yuv.luma + (1 << (yuv.bits - 1));
    levels[0] = level_of((from_y + yuv.v_red * v) >> yuv.bits);
    levels[1] = level_of((from_y + yuv.u_green * u + yuv.v_green * v) >> yuv.bits);
    levels[2] = level_of((from_y + yuv.u_blue * u) >> yuv.bits);
}

// A pixel of the part that is read: its three levels, or with one channel its gray.
template <int CHANNELS>
__device__ void source_pixel(const Work &work, int row, int column, int *levels)
{
    int rgb[3];
    row += work.top;
    column += work.left;
    if (work.yuv) {
        yuv_pixel(*work.yuv, work.source, row, column, rgb);
    } else {
        const unsigned char *pixel = work.source + row * work.source_pitch + 3 * (long long)column;
        for (int channel = 0; channel < 3; channel++)
            rgb[channel] = __ldg(pixel + channel);
    }
    if (CHANNELS == 1)
        rgb[0] = gray_level(rgb[0], rgb[1], rgb[2]);
    for (int channel = 0; channel < CHANNELS; channel++)
        levels[channel] = rgb[channel];
}
"""
