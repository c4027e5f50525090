"""Pillow's and PyTorch's resize of a part of an image, to the bit: fixed-point weights, 8 bit between the passes.

Pillow's ``Image.resize(box=...)`` takes the corners of the part as float32, and a weight that is off in its last bit
may make a level of difference, which the second pass makes two. So the part is resampled here.

Along a row neighbouring values have different weights, which vector instructions cannot use. So a block of rows is
transposed first, eight by eight bytes in integers of 64 bit: values that have one weight then lie side by side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled
from onestream.preprocess.cpu.pillow_weights import DIGITS, Indices, Weights, remembered, window_weights
from onestream.preprocess.geometry import Size, Spans
from onestream.preprocess.operations import Filter

Pixels = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]
_HALF = np.int32(1 << (DIGITS - 1))
_SHIFT = np.int32(DIGITS)
_LANES = 96
"""Values that have one weight: a column of 32 pixels in colour, or of 96 in gray. A multiple of 8 times the channels,
and a constant, for which loops over it are unrolled."""


def resample_fixed_point(
    pixels: Pixels,
    spans: Spans,
    size_hw: Size,
    filter: Filter,
    *,
    digits_hw: Size = (DIGITS, DIGITS),
    columns_first: bool,
    to_bgr: bool,
) -> Pixels:
    """Resample a window of pixels, (height, width, 3 or 1), that lies at ``spans`` along y and x.

    Returns (size_hw[0], size_hw[1], channels) uint8. Weights have ``digits_hw`` binary digits along y and x
    (``pillow_weights.line_digits``). ``columns_first`` is what ``pillow_weights.columns_first`` says of the whole
    image. ``to_bgr`` gives three channels in reverse order. Where the pixels end inside the image they must hold the
    filter's margin.
    """
    height, width, channels = pixels.shape
    rows = remembered_weights(size_hw[0], *spans[0], height, filter, digits_hw[0])
    columns = remembered_weights(size_hw[1], *spans[1], width, filter, digits_hw[1])
    out = np.empty((*size_hw, channels), np.uint8)
    source, lines = pixels.reshape(height, -1), out.reshape(size_hw[0], -1)
    if columns_first:
        between = np.empty((size_hw[0], source.shape[1]), np.uint8)
        _down_columns(source, between, *rows)
        lines[:] = _resampled_rows(between, lines.shape[1], columns, channels)[: size_hw[0], : lines.shape[1]]
    else:
        resample_lines(source, lines, rows, columns, channels=channels)
    return np.ascontiguousarray(out[:, :, ::-1] if to_bgr else out)


remembered_weights = remembered(256)(window_weights)


def resample_lines(source: Pixels, out: Pixels, rows: Weights, columns: Weights, *, channels: int) -> None:
    """Resample lines of pixels, (height, width x channels), to ``out``, of the same form; ``channels`` is 1 or 3."""
    first, end = rows[0][0], rows[0][-1] + rows[1][-1]
    lines = _resampled_rows(source[first:end], out.shape[1], columns, channels)
    _down_columns(lines, out, rows[0] - first, *rows[1:])


def _resampled_rows(source: Pixels, width: int, columns: Weights, channels: int) -> Pixels:
    """Lines of ``width`` values or more, and of them as many or more."""
    block = _LANES // channels
    lines = np.empty((-(-len(source) // block) * block, -(-width // 8)), np.uint64)
    _along_rows(source, lines, block, *columns)
    return lines.view(np.uint8)


_WORD = "uint64"
_LOW_BYTES, _LOW_PAIRS, _LOW_HALF = (
    np.uint64(0x00FF00FF00FF00FF),
    np.uint64(0x0000FFFF0000FFFF),
    np.uint64(0x00000000FFFFFFFF),
)
_ONE, _TWO, _THREE, _FOUR, _FIVE, _SIX, _SEVEN, _EIGHT = (np.uint64(number) for number in range(1, 9))
_IN_GRAY, _IN_COLOR = np.uint64(_LANES // 8), np.uint64(_LANES // 3 // 8)
_BYTE, _PAIR, _HALF_WORD = np.uint64(8), np.uint64(16), np.uint64(32)
"""Indices are unsigned where it counts: a signed one is checked for a count from the end, which takes longer."""


@compiled(f"UniTuple({_WORD}, 2)({', '.join([_WORD] * 4)})")
def _exchanged(one: np.uint64, other: np.uint64, low: np.uint64, bits: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The high parts of ``one`` and the low parts of ``other`` in each other's place."""
    differs = ((one >> bits) ^ other) & low
    return one ^ (differs << bits), other ^ differs


@compiled(f"UniTuple({_WORD}, 8)({', '.join([_WORD] * 8)})")
def _transposed(
    a: np.uint64,
    b: np.uint64,
    c: np.uint64,
    d: np.uint64,
    e: np.uint64,
    f: np.uint64,
    g: np.uint64,
    h: np.uint64,
) -> tuple[np.uint64, ...]:
    """Eight rows of eight bytes as eight columns (H. Warren, Hacker's Delight, 7-3)."""
    a, b = _exchanged(a, b, _LOW_BYTES, _BYTE)
    c, d = _exchanged(c, d, _LOW_BYTES, _BYTE)
    e, f = _exchanged(e, f, _LOW_BYTES, _BYTE)
    g, h = _exchanged(g, h, _LOW_BYTES, _BYTE)
    a, c = _exchanged(a, c, _LOW_PAIRS, _PAIR)
    b, d = _exchanged(b, d, _LOW_PAIRS, _PAIR)
    e, g = _exchanged(e, g, _LOW_PAIRS, _PAIR)
    f, h = _exchanged(f, h, _LOW_PAIRS, _PAIR)
    a, e = _exchanged(a, e, _LOW_HALF, _HALF_WORD)
    b, f = _exchanged(b, f, _LOW_HALF, _HALF_WORD)
    c, g = _exchanged(c, g, _LOW_HALF, _HALF_WORD)
    d, h = _exchanged(d, h, _LOW_HALF, _HALF_WORD)
    return a, b, c, d, e, f, g, h


@compiled("void(uint64[:,::1], uint64[::1], uint64)", inline="always")
def _to_columns(rows: _Words, columns: _Words, step: np.uint64) -> None:
    """Bytes of ``rows``, of which there are 8 x ``step``, as ``columns``, one after the other."""
    for group in range(rows.shape[0] // 8):
        a, b, c, d = rows[8 * group], rows[8 * group + 1], rows[8 * group + 2], rows[8 * group + 3]
        e, f, g, h = rows[8 * group + 4], rows[8 * group + 5], rows[8 * group + 6], rows[8 * group + 7]
        at, word = np.uint64(group), np.uint64(0)
        for _ in range(rows.shape[1]):
            (
                columns[at],
                columns[at + step],
                columns[at + _TWO * step],
                columns[at + _THREE * step],
                columns[at + _FOUR * step],
                columns[at + _FIVE * step],
                columns[at + _SIX * step],
                columns[at + _SEVEN * step],
            ) = _transposed(a[word], b[word], c[word], d[word], e[word], f[word], g[word], h[word])
            at += _EIGHT * step
            word += _ONE


@compiled("void(uint64[::1], uint64[:,::1], uint64)", inline="always")
def _to_rows(columns: _Words, rows: _Words, step: np.uint64) -> None:
    """The reverse of ``_to_columns``."""
    for group in range(rows.shape[0] // 8):
        a, b, c, d = rows[8 * group], rows[8 * group + 1], rows[8 * group + 2], rows[8 * group + 3]
        e, f, g, h = rows[8 * group + 4], rows[8 * group + 5], rows[8 * group + 6], rows[8 * group + 7]
        at, word = np.uint64(group), np.uint64(0)
        for _ in range(rows.shape[1]):
            a[word], b[word], c[word], d[word], e[word], f[word], g[word], h[word] = _transposed(
                columns[at],
                columns[at + step],
                columns[at + _TWO * step],
                columns[at + _THREE * step],
                columns[at + _FOUR * step],
                columns[at + _FIVE * step],
                columns[at + _SIX * step],
                columns[at + _SEVEN * step],
            )
            at += _EIGHT * step
            word += _ONE


@compiled("void(uint8[::1], uint8[::1], uint8[::1], uint8[::1], int32[::1], uint8[::1])", inline="always")
def _blend_four(one: Pixels, two: Pixels, three: Pixels, four: Pixels, weights: Indices, out: Pixels) -> None:
    """The weighted sums of four lines: bicubic's where a picture keeps its size or grows. No sum leaves a register."""
    by_one, by_two, by_three, by_four = weights[0], weights[1], weights[2], weights[3]
    for x in range(out.size):
        pair = np.int32(by_one * np.int32(one[x]) + by_two * np.int32(two[x]))
        other = np.int32(by_three * np.int32(three[x]) + by_four * np.int32(four[x]))
        out[x] = min(max(np.int32(pair + other + _HALF) >> _SHIFT, 0), 255)


@compiled("void(uint8[::1], uint8[::1], int32[::1], int32[::1], int32[:,::1])")
def _blend_columns(source: Pixels, out: Pixels, first: Indices, count: Indices, weights: Indices) -> None:
    """Columns of ``_LANES`` values, one after the other, of which each of ``out`` is a weighted sum."""
    totals = np.empty(_LANES, np.int32)
    lanes, place = np.uint64(_LANES), np.uint64(0)
    for column in range(first.size):
        at = np.uint64(first[column]) * lanes
        if count[column] == 4:
            _blend_four(
                source[at : at + lanes],
                source[at + lanes : at + _TWO * lanes],
                source[at + _TWO * lanes : at + _THREE * lanes],
                source[at + _THREE * lanes : at + _FOUR * lanes],
                weights[column],
                out[place : place + lanes],
            )
            place += lanes
            continue
        totals[:] = _HALF
        for tap in range(count[column]):
            weight = weights[column, tap]
            for lane in range(_LANES):
                totals[lane] += weight * np.int32(source[at + np.uint64(lane)])
            at += lanes
        for lane in range(_LANES):
            out[place + np.uint64(lane)] = min(max(totals[lane] >> _SHIFT, 0), 255)
        place += lanes


@compiled("void(uint8[:,::1], uint64[:,::1], int64, int32[::1], int32[::1], int32[:,::1])")
def _along_rows(source: Pixels, out: _Words, block: int, first: Indices, count: Indices, weights: Indices) -> None:
    """Resample lines to those of ``out``, in blocks of so many; what follows its last pixel is of no use."""
    rows = np.zeros((block, (source.shape[1] + 7) // 8), np.uint64)
    row_bytes = rows.view(np.uint8)
    columns, made = np.empty(rows.size, np.uint64), np.zeros(block * out.shape[1], np.uint64)
    for top in range(0, source.shape[0], block):
        for row in range(block):
            line, there = source[min(top + row, source.shape[0] - 1)], row_bytes[row]
            for x in range(line.size):
                there[x] = line[x]
        # As constants steps are known to the compiler, which halves the time.
        if block == _LANES:
            _to_columns(rows, columns, _IN_GRAY)
        else:
            _to_columns(rows, columns, _IN_COLOR)
        _blend_columns(columns.view(np.uint8), made.view(np.uint8), first, count, weights)
        if block == _LANES:
            _to_rows(made, out[top : top + block], _IN_GRAY)
        else:
            _to_rows(made, out[top : top + block], _IN_COLOR)


@compiled("void(uint8[:,::1], uint8[:,::1], int32[::1], int32[::1], int32[:,::1])")
def _down_columns(lines: Pixels, out: Pixels, first: Indices, count: Indices, weights: Indices) -> None:
    """Resample the columns of ``lines``, which may be longer than those of ``out``."""
    totals = np.empty(out.shape[1], np.int32)
    for y in range(out.shape[0]):
        tap, at = 0, first[y]
        if count[y] == 4:
            _blend_four(lines[at], lines[at + 1], lines[at + 2], lines[at + 3], weights[y], out[y])
            continue
        totals[:] = _HALF
        # Three lines at once take a third of the passes over the sums.
        while tap + 3 <= count[y]:
            one, two, three = lines[at + tap], lines[at + tap + 1], lines[at + tap + 2]
            by_one, by_two, by_three = weights[y, tap], weights[y, tap + 1], weights[y, tap + 2]
            for x in range(totals.size):
                totals[x] += by_one * np.int32(one[x]) + by_two * np.int32(two[x]) + by_three * np.int32(three[x])
            tap += 3
        while tap < count[y]:
            weight, line = weights[y, tap], lines[at + tap]
            for x in range(totals.size):
                totals[x] += weight * np.int32(line[x])
            tap += 1
        for x in range(totals.size):
            out[y, x] = min(max(totals[x] >> _SHIFT, 0), 255)
