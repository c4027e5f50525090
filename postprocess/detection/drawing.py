"""Draws boxes, names and scores into frames, in their planes of YUV: nothing is converted to RGB and back.

Lines and captions begin and end where chroma samples do, so that no colour bleeds: in 4:2:0 at even rows and columns.
A box is drawn up to a pixel larger than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.postprocess.frames import FrameWork, Results
from onestream.postprocess.planes import check_shapes, copy_in_8_bits, each_plane, from_rgb, plane_sizes
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import ColorRule, Matrix, Pixels, Planes, Range
from onestream.wire.box_style import color_of, ink_on
from onestream.wire.tensor_names import BOXES, CLASS_IDS, LABELS, SCORES

if TYPE_CHECKING:
    from onestream.postprocess.planes_gpu import PlanesTaker
    from onestream.preprocess.video.common.orientation import Orientation
    from onestream.preprocess.video.gpu.surfaces import Surface

_SIDES = 4
_LINES_A_SIDE, _TEXTS_A_SIDE, _SMALLEST_TEXT = 270, 40, 12
"""The picture's shorter side in widths of lines and in sizes of text, and the smallest text that can be read."""
_LONGEST_NAME = 60
_FARTHEST = 2.0**16
"""Of the end of a line, in pixels: beyond every frame."""


class Lines(NamedTuple):
    """What is drawn beside boxes: lines in the colours of classes, and points on them in that of their texts.

    ``ends`` is (m, 4), x0 y0 x1 y1 in pixels of the frame, perhaps beyond it; ``class_ids`` (m,); ``points`` (p, 2), x
    and y, of ``point_class_ids`` (p,). ``in_place_of_boxes``: the boxes are not drawn. ``runs`` are
    masks of the frame (``onestream.wire.run_lengths``) that are tinted, of ``run_class_ids``.
    """

    ends: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]
    points: npt.NDArray[np.float32]
    point_class_ids: npt.NDArray[np.int32]
    in_place_of_boxes: bool = False
    runs: Sequence[npt.NDArray[np.int64]] = ()
    run_class_ids: npt.NDArray[np.int32] = np.empty(0, np.int32)


NO_LINES = Lines(
    np.empty((0, 4), np.float32), np.empty(0, np.int32), np.empty((0, 2), np.float32), np.empty(0, np.int32)
)
"""Nothing."""


def draw_boxes(
    frame: Planes,
    boxes: npt.NDArray[np.float32],
    scores: npt.NDArray[np.float32],
    class_ids: npt.NDArray[np.int32],
    labels: npt.NDArray[np.object_],
    *,
    rule: ColorRule,
    beside: Lines | None = None,
) -> None:
    """Draw objects into an upright frame of 8 bit, the best of them, which comes first, on top.

    ``boxes`` is (n, 4): x0 y0 x1 y1 in pixels of the frame, within it; of the others there are n each, labels as bytes.
    Texts are over the lines ``beside`` them.
    Raises ``ValueError`` where ``rule`` cannot be resolved for the frame.
    """
    from onestream.postprocess.detection.kernels import fill, stamp, stroke, tint

    colors = rule.resolve(matrix_tag=frame.matrix_tag, full_range=frame.full_range)
    check_shapes(frame)
    none = (0, 0)
    planes = [
        (plane[:height, :width], shifts)
        for plane, (height, width), shifts in zip(
            each_plane(frame), plane_sizes(frame), (none, frame.shifts, frame.shifts), strict=True
        )
    ]
    cell_hw = (1 << frame.shifts[0], 1 << frame.shifts[1])
    paints = [_paint(class_id, colors.matrix, colors.range) for class_id in class_ids[::-1].tolist()]
    placed = _whole_cells(boxes[::-1], cell_hw)
    side, cell = min(frame.size_hw), max(cell_hw)
    width = -(-max(2, round(side / _LINES_A_SIDE)) // cell)
    lines = _lines(placed[:0] if beside is not None and beside.in_place_of_boxes else placed, width * cell)
    strokes = [] if beside is None else _strokes(beside, width, cell_hw, colors.matrix, colors.range)
    for runs, class_id in () if beside is None else zip(beside.runs, beside.run_class_ids.tolist(), strict=True):
        for (plane, shifts), level in zip(planes, _paint(class_id, colors.matrix, colors.range).levels, strict=True):
            tint(plane, runs, frame.size_hw[0], *shifts, level)
    for number, (plane, shifts) in enumerate(planes):
        levels = np.array([paint.levels[number] for paint in paints], np.uint8).repeat(_SIDES)
        fill(plane, lines >> np.tile(shifts, 2), levels)
        samples = (cell_hw[0] >> shifts[0], cell_hw[1] >> shifts[1])
        for ends, wide, colored in strokes:
            stroke(plane, ends, wide, *samples, np.ascontiguousarray(colored[:, number]))
    size = max(_SMALLEST_TEXT, round(side / _TEXTS_A_SIDE))
    for (top, left, _, _), score, label, paint in zip(
        placed.tolist(), scores[::-1].tolist(), labels[::-1], paints, strict=True
    ):
        name = " ".join(label.decode(errors="replace").split())[:_LONGEST_NAME]
        pieces = [_text(f" {name} ", size, cell_hw), _text(f"{score:.2f} ", size, cell_hw)]
        tall, wide = pieces[0].size_hw[0], sum(piece.size_hw[1] for piece in pieces)
        # Above the box, or inside where there is no room; always within the picture.
        at_y = top - tall if top >= tall else top
        at_x = min(left, max(0, frame.size_hw[1] - wide) // cell_hw[1] * cell_hw[1])
        for piece in pieces:
            for (plane, (down, across)), mask, levels in zip(planes, piece.masks, paint.to_ink, strict=True):
                stamp(plane, at_y >> down, at_x >> across, mask, levels)
            at_x += piece.size_hw[1]


def _whole_cells(boxes: npt.NDArray[np.float32], cell_hw: Size) -> npt.NDArray[np.int64]:
    """Boxes (n, 4) as top, left, bottom, right, enlarged to where chroma samples begin and end."""
    cells = np.array(cell_hw) * 1.0
    first, last = boxes[:, 1::-1] // cells, -(-boxes[:, :1:-1] // cells)
    whole: npt.NDArray[np.int64] = (np.concatenate([first, last], axis=1) * np.tile(cells, 2)).astype(np.int64)
    return whole


def _lines(boxes: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """The four sides of each box as rectangles (4 n, 4) of a width, within it."""
    sides = np.repeat(boxes[:, None], _SIDES, axis=1)
    top, left, bottom, right = boxes.T
    sides[:, 0, 2] = np.minimum(top + width, bottom)
    sides[:, 1, 0] = np.maximum(bottom - width, top)
    sides[:, 2, 3] = np.minimum(left + width, right)
    sides[:, 3, 1] = np.maximum(right - width, left)
    return sides.reshape(-1, 4)


def _strokes(
    beside: Lines, width: int, cell_hw: Size, matrix: Matrix, range_: Range
) -> list[tuple[npt.NDArray[np.float64], int, npt.NDArray[np.uint8]]]:
    """Lines and points as ends (m, 4) in cells, how many cells they are wide, and Y, U and V of each, (m, 3)."""
    lines, points = (
        [_paint(one, matrix, range_) for one in ids.tolist()] for ids in (beside.class_ids, beside.point_class_ids)
    )
    levels = np.array([paint.levels for paint in lines], np.uint8).reshape(-1, 3)
    inks = np.array([[plane[-1] for plane in paint.to_ink] for paint in points], np.uint8).reshape(-1, 3)
    cell = np.array([*cell_hw[::-1]] * 2, np.float64)
    # A stroke takes a step for every cell, in the frame or not.
    ends = beside.ends.clip(-_FARTHEST, _FARTHEST)
    return [(ends / cell, width, levels), (np.tile(beside.points, 2) / cell, width + 1, inks)]


class _Paint(NamedTuple):
    """Y, U and V of a class's colour, and for each the levels from it (0) to that of the text on it (255)."""

    levels: tuple[int, int, int]
    to_ink: tuple[Pixels, Pixels, Pixels]


@lru_cache(maxsize=4096)
def _paint(class_id: int, matrix: Matrix, range_: Range) -> _Paint:
    color = color_of(class_id)
    back, ink = (
        [int(plane[0, 0]) for plane in from_rgb(np.array([[one]], np.uint8), matrix, range_, (0, 0))]
        for one in (color, ink_on(color))
    )
    y, u, v = (np.linspace(one, other, 256).round().astype(np.uint8) for one, other in zip(back, ink, strict=True))
    return _Paint((back[0], back[1], back[2]), (y, u, v))


class _Text(NamedTuple):
    """How much of each sample of Y, U and V is text, 0 to 255; (height, width) in pixels, of whole chroma samples."""

    masks: tuple[Pixels, Pixels, Pixels]
    size_hw: Size


@lru_cache(maxsize=512)
def _text(text: str, size: int, cell_hw: Size) -> _Text:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    # Of equal height, whatever is written.
    _, top, _, bottom = font.getbbox("Ågy")
    margin = max(1, size // 8)
    height, width = (
        -(-int(length) // cell) * cell
        for length, cell in zip((bottom - top + 2 * margin, font.getlength(text) + 1), cell_hw, strict=True)
    )
    picture = Image.new("L", (width, height))
    ImageDraw.Draw(picture).text((0, margin - top), text, fill=255, font=font)
    luma = np.array(picture)
    cells = luma.reshape(height // cell_hw[0], cell_hw[0], width // cell_hw[1], cell_hw[1])
    chroma = cells.mean(axis=(1, 3)).round().astype(np.uint8)
    return _Text((luma, chroma, chroma), (height, width))


class DrawnBoxes(FrameWork):
    """Draws the objects that were found, on the CPU: a frame on a GPU is downloaded first, since it is encoded here."""

    def __init__(
        self,
        rule: ColorRule,
        lines: Callable[[Results], Lines | None] = lambda _results: None,
        *,
        from_gpu: PlanesTaker | None = None,
    ) -> None:
        self._rule, self._lines, self._from_gpu = rule, lines, from_gpu

    def write(self, frame: Planes, results: Results, out: Planes) -> None:
        """See ``FrameWork.write``."""
        copy_in_8_bits(frame, out)
        self._draw(results, out)

    def write_surface(self, surface: Surface, orientation: Orientation, results: Results, out: Planes) -> None:
        """See ``FrameWork.write_surface``."""
        assert self._from_gpu is not None, "who decodes on a GPU takes frames from there"
        self._from_gpu.take(surface, orientation, out)
        self._draw(results, out)

    def _draw(self, results: Results, out: Planes) -> None:
        found = (results[name] for name in (BOXES, SCORES, CLASS_IDS, LABELS))
        draw_boxes(out, *found, rule=self._rule, beside=self._lines(results))
