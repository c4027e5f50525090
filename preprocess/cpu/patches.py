"""Pixels to the rows of patches that ``operations.Patches.rows`` states, each level by a table of its channel.

The lines of a row of tokens are split into planes first, by vector instructions. Rows are then written in order, a few
values more than a line of a patch has, which the next line overwrites: copies of constant length take a third.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
_COPIED = 16
"""Values that are copied at once."""
_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16 = (np.uint64(n) for n in range(1, _COPIED + 1))
"""Indices are unsigned where it counts: a signed one is checked for a count from the end, which takes longer."""
_TYPES = ("uint8", "uint16", "float32")


@compiled("void(uint8[::1], uint8[:,::1])", inline="always")
def _split(line: Pixels, planes: Pixels) -> None:
    """A line of pixels to planes (c, width)."""
    if planes.shape[0] == 3:
        red, green, blue = planes[0], planes[1], planes[2]
        for x in range(planes.shape[1]):
            red[x], green[x], blue[x] = line[3 * x], line[3 * x + 1], line[3 * x + 2]
    else:
        planes[0] = line


@compiled(*(f"void({value}[::1], uint64, {value}[::1], uint64)" for value in _TYPES), inline="always")
def _copy(source: Values, at: np.uint64, target: Values, to: np.uint64) -> None:
    """Sixteen values, all of which are read before one is written, so that it does not matter if they overlap."""
    a, b, c, d, e, f, g, h = (
        source[at], source[at + _1], source[at + _2], source[at + _3],
        source[at + _4], source[at + _5], source[at + _6], source[at + _7],
    )  # fmt: skip
    i, j, k, q, m, n, o, p = (
        source[at + _8], source[at + _9], source[at + _10], source[at + _11],
        source[at + _12], source[at + _13], source[at + _14], source[at + _15],
    )  # fmt: skip
    target[to], target[to + _1], target[to + _2], target[to + _3] = a, b, c, d
    target[to + _4], target[to + _5], target[to + _6], target[to + _7] = e, f, g, h
    target[to + _8], target[to + _9], target[to + _10], target[to + _11] = i, j, k, q
    target[to + _12], target[to + _13], target[to + _14], target[to + _15] = m, n, o, p


@compiled(
    *(f"uint64({value}[::1], uint64, uint64, {value}[::1], uint64, uint64, uint64, uint64)" for value in _TYPES),
    inline="always",
)
def _write_patch(
    source: Values,
    begin: np.uint64,
    line: np.uint64,
    target: Values,
    at: np.uint64,
    lines: np.uint64,
    count: np.uint64,
    room: np.uint64,
) -> np.uint64:
    """Write ``lines`` of ``count`` values, ``line`` apart; where there is room, up to 15 more. Returns the end."""
    for _ in range(lines):
        if room:
            for x in range(np.uint64(0), count, _16):
                _copy(source, begin + x, target, at + x)
        else:
            for x in range(np.uint64(0), count, _1):
                target[at + x] = source[begin + x]
        at, begin = at + count, begin + line
    return at


@compiled(*(f"void(uint8[:,::1], {value}[:,::1], {value}[:,:])" for value in _TYPES), inline="always")
def _look_up(planes: Pixels, table: Values, lines: Values) -> None:
    """Levels (c, width) to the values of ``lines``, (c, width or more), by a table of each channel, or as they are."""
    for channel in range(planes.shape[0]):
        plane, line = planes[channel], lines[channel]
        if table.size:
            levels = table[channel]
            for x in range(planes.shape[1]):
                line[x] = levels[plane[x]]
        else:
            for x in range(planes.shape[1]):
                line[x] = plane[x]


@compiled(
    *(
        f"void(uint8[:,:,:,::1], {value}[:,::1], uint64, uint64, uint64, boolean, {value}[:,::1])"
        for value in _TYPES
    )
)  # fmt: skip
def write_rows(
    frames: Pixels,
    table: Values,
    patch: np.uint64,
    temporal: np.uint64,
    square: np.uint64,
    interleaved: bool,
    rows: Values,
) -> None:
    """Write the patches of ``frames``, (1 to ``temporal``, height, width, c), to ``rows``; the last one is repeated.

    The rows of ``square`` x ``square`` patches follow each other. A row is (c, temporal, patch, patch), or with
    ``interleaved`` (temporal, patch, patch, c). ``table`` is (c, 256), of the rows' type; an empty one writes the
    levels as they are.
    """
    count, width, channels = np.uint64(frames.shape[0]), np.uint64(frames.shape[2]), np.uint64(frames.shape[3])
    lines, out, unit = frames.reshape(count, frames.shape[1], -1), rows.reshape(-1), square * patch
    planes = np.empty((channels, width), np.uint8)
    # Interleaved pixels are one plane of longer lines.
    apart, beside = (_1, channels) if interleaved else (channels, _1)
    band = np.zeros((count, unit, apart, width * beside + _15), rows.dtype)
    values, step, at = band.reshape(-1), width * beside + _15, np.uint64(0)
    token = channels * temporal * unit * unit
    for top in range(0, frames.shape[1], unit):
        for frame in range(count):
            for y in range(unit):
                _split(lines[frame, top + y], planes)
                if interleaved:
                    line = band[frame, y, 0]
                    _look_up(planes, table, line[: width * channels].reshape(width, channels).T)
                else:
                    _look_up(planes, table, band[frame, y])
        for left in range(np.uint64(0), width, unit):
            room = np.uint64(at + token + _15 <= np.uint64(out.size))
            for number in range(square * square):
                first = number // square * patch * apart * step + (left + number % square * patch) * beside
                for plane in range(apart):
                    for time in range(temporal):
                        begin = first + (min(np.uint64(time), count - _1) * unit * apart + plane) * step
                        at = _write_patch(values, begin, apart * step, out, at, patch, patch * beside, room)


@compiled(*(f"void(uint8[:,:,::1], {value}[:,::1], {value}[:,:,::1])" for value in _TYPES))
def write_planes(pixels: Pixels, table: Values, picture: Values) -> None:
    """Write ``pixels``, (height, width, c), to the top left of ``picture``, (c, height or more, width or more)."""
    lines, planes = pixels.reshape(pixels.shape[0], -1), np.empty((pixels.shape[2], pixels.shape[1]), np.uint8)
    for y in range(pixels.shape[0]):
        _split(lines[y], planes)
        _look_up(planes, table, picture[:, y])
