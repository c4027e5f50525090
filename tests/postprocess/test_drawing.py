"""Boxes drawn into planes of YUV: in every format, where they are and nowhere else, in the colour of their class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_frames import a_frame, a_surface
from host_gpu import HostDevice
from hypothesis import given
from hypothesis import strategies as st

from onestream.postprocess.detection.drawing import DrawnBoxes, draw_boxes
from onestream.postprocess.kinds.keypoints import Keypoints
from onestream.postprocess.planes import copy_in_8_bits, displayed, in_8_bits, plane_sizes
from onestream.postprocess.planes_gpu import PlanesTaker
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS
from onestream.wire.box_style import color_of
from onestream.wire.tensor_names import BOXES, CLASS_IDS, LABELS, SCORES

GRAY = 120
SHIFTS = [(1, 1), (0, 1), (1, 0), (0, 0)]
RULE = ColorRule()


def gray(size_hw: tuple[int, int], shifts: tuple[int, int] = (1, 1), *, tag: int = 1, full: bool = False) -> Planes:
    """A frame of one gray, with rows that are padded with 77."""
    frame = Planes(*[np.empty((0, 0), np.uint8)] * 3, size_hw, shifts, 8, tag, full)
    y, u, v = (np.full((rows, columns + 3), 77, np.uint8) for rows, columns in plane_sizes(frame))
    for plane, level in ((y, GRAY), (u, 128), (v, 128)):
        plane[:, :-3] = level
    return replace(frame, y=y, u=u, v=v)


def draw(frame: Planes, boxes: Any, class_ids: Any = None, labels: Any = None) -> None:
    count = len(boxes)
    corners, scores = np.array(boxes, np.float32).reshape(count, 4), np.linspace(0.9, 0.5, count).astype(np.float32)
    ids = np.array(range(count) if class_ids is None else class_ids, np.int32)
    names = np.array([b"cat"] * count if labels is None else labels, object)
    draw_boxes(frame, corners, scores, ids, names, rule=RULE)


@pytest.mark.parametrize(
    ("shifts", "tag", "full"),
    [((1, 1), 1, False), ((1, 1), 9, True), ((0, 1), 6, False), ((1, 0), 6, True), ((0, 0), 9, False)],
)
def test_only_lines_change_to_the_colour_of_the_class(shifts: tuple[int, int], tag: int, full: bool) -> None:
    frame = gray((1080, 1920), shifts, tag=tag, full=full)
    before = to_rgb(frame, RULE)
    draw(frame, [(401.3, 300.9, 800.2, 600.5)], [17])
    pixels = to_rgb(frame, RULE).astype(int)
    # Enlarged to whole chroma samples; lines are 4 pixels wide.
    down, across = (1 << shift for shift in shifts)
    top, bottom = 300 // down * down, -(-601 // down) * down
    left, right = 401 // across * across, -(-801 // across) * across
    box, inside = np.zeros(before.shape[:2], bool), np.zeros(before.shape[:2], bool)
    box[top:bottom, left:right], inside[top + 4 : bottom - 4, left + 4 : right - 4] = True, True
    # A rounded level of Y, U and V is at most two of RGB.
    assert np.abs(pixels[box & ~inside] - color_of(17)).max() <= 3
    box[top - 40 : top, left:right] = True
    np.testing.assert_array_equal(pixels[inside | ~box], before[inside | ~box])
    # The caption, above the box, has text of another colour on its own.
    caption = pixels[top - 20 : top - 4, left : left + 60].reshape(-1, 3)
    assert np.abs(caption - color_of(17)).max(axis=1).min() <= 3
    assert (caption.max(axis=1) - caption.min(axis=1)).min() < 40


Side = st.integers(1, 150)


@given(
    size_hw=st.tuples(Side, Side),
    shifts=st.sampled_from(SHIFTS),
    corners=st.lists(st.tuples(*[st.floats(0, 1, width=32)] * 4), max_size=5),
    label=st.sampled_from(["cat", "", "a\nb\t c", "ärgerlich groß", "x" * 500, "日本", "\x00"]),
)
def test_boxes_of_any_size_stay_within_frames_of_any_size(
    size_hw: tuple[int, int], shifts: tuple[int, int], corners: list[Any], label: str
) -> None:
    height, width = size_hw
    boxes = [(min(a, c) * width, min(b, d) * height, max(a, c) * width, max(b, d) * height) for a, b, c, d in corners]
    frame = gray(size_hw, shifts)
    draw(frame, boxes, labels=[label.encode()] * len(boxes))
    for plane in (frame.y, frame.u, frame.v):
        assert (plane[:, -3:] == 77).all(), "what pads the rows is not ours"
    if not boxes:
        assert (frame.y[:, :-3] == GRAY).all()


def test_the_best_box_is_on_top_and_an_unknown_matrix_refused() -> None:
    frame, box = gray((400, 400)), (100, 100, 300, 300)
    draw(frame, [box, box], [17, 2])
    assert np.abs(to_rgb(frame, RULE)[200, 101].astype(int) - color_of(17)).max() <= 3
    with pytest.raises(ValueError, match="is tagged with matrix coefficients 8"):
        draw(replace(frame, matrix_tag=8), [box])


def test_lines_and_text_grow_with_the_picture() -> None:
    def drawn(size: int) -> int:
        frame = gray((size, size))
        draw(frame, [(size * 0.2, size * 0.5, size * 0.8, size * 0.9)])
        return int((frame.y[:, :-3] != GRAY).sum())

    # Where nothing grew with it, twice the size would have twice the pixels in lines and as many in text.
    assert drawn(2160) > 3 * drawn(1080)


@pytest.mark.parametrize("depth", [8, 10])
@pytest.mark.parametrize("shifts", SHIFTS)
def test_frames_are_copied_in_8_bit(shifts: tuple[int, int], depth: int) -> None:
    frame, out = a_frame((51, 77), (shifts, depth), seed=3), gray((51, 77), shifts)
    copy_in_8_bits(frame, out)
    for plane, expected in zip((out.y, out.u, out.v), _planes(in_8_bits(frame)), strict=True):
        np.testing.assert_array_equal(plane[:, :-3], expected)
        assert (plane[:, -3:] == 77).all()
    with pytest.raises(ValueError, match=r"out has size, chroma shifts and depth \(\(51, 78\)"):
        copy_in_8_bits(frame, gray((51, 78), shifts))


@given(
    key=st.sampled_from(sorted(LAYOUTS)),
    size_hw=st.tuples(Side, Side),
    orientation=st.builds(Orientation, st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 1000),
)
def test_frames_of_a_gpu_are_drawn_into(
    key: Any, size_hw: tuple[int, int], orientation: Orientation, seed: int
) -> None:
    """Through what streams use, on a GPU of host memory: two frames by one taker, every bit."""
    device = HostDevice()
    stream: Any = device.stream()
    work = DrawnBoxes(RULE, from_gpu=PlanesTaker(stream))
    for number in (seed, seed + 1):
        frame = a_frame(size_hw, key, seed=number)
        shown = displayed(frame, orientation)
        height, width = shown.size_hw
        box = np.array([[0.1 * width, 0.3 * height, 0.8 * width, 0.9 * height]], np.float32)
        found = (box, np.float32([0.5]), np.int32([number]), np.array([b"dog"], object))
        results = dict(zip((BOXES, SCORES, CLASS_IDS, LABELS), found, strict=True))
        one, other = gray(shown.size_hw, shown.shifts), gray(shown.size_hw, shown.shifts)
        work.write(shown, results, one)
        surface, waits = a_surface(frame, stream), device.syncs
        work.write_surface(surface, orientation, results, other)
        # The second frame is copied and waited for once.
        assert number == seed or device.syncs == waits + 1
        for plane, expected in zip(_planes(other), _planes(one), strict=True):
            np.testing.assert_array_equal(plane, expected)
    with pytest.raises(ValueError, match=r"out has size, chroma shifts and depth"):
        work.write_surface(surface, orientation, results, gray((height, width + 1), shown.shifts))


def _planes(frame: Planes) -> tuple[Any, Any, Any]:
    return frame.y, frame.u, frame.v


@pytest.mark.parametrize("shifts", SHIFTS)
def test_lines_and_points_that_are_shown_are_drawn_beside_boxes(shifts: tuple[int, int]) -> None:
    frame = gray((96, 96), shifts)
    options = Keypoints(family="yolo", points=("a", "b", "c"), skeleton=(("a", "b"), ("b", "c")))
    points = np.array([[[20, 40], [80, 90], [90, 40]]], np.float32)
    results = {CLASS_IDS: np.zeros(1, np.int32), "keypoints": points, "point_scores": np.float32([[1, 1, 0.1]])}
    draw_boxes(frame, np.zeros((0, 4), np.float32), *[np.empty(0)] * 3, rule=RULE, beside=options.lines(results))
    changed = frame.y[:, :-3] != GRAY
    for x, y in np.linspace((20, 40), (80, 90), 200).astype(int):
        assert changed[y - 2 : y + 3, x - 2 : x + 3].any(), "the line has no gap"
    places = np.argwhere(changed)[:, ::-1] - (20, 40)
    assert np.abs(places @ (50, -60) / np.hypot(50, 60)).max() < 6, "the point that is not shown, and its line"
    assert (frame.u[:, :-3] != 128).any()
