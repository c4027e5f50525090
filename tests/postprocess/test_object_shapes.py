"""Masks, points and turned boxes of objects: where they lie in a picture, and how alike two of them are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detectors import ANGLE, CELL, MASKED_CELLS, POINTS, POSES, TURNED_CELLS
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kind_networks import answer_in_process, built_of
from PIL import Image
from pydantic import ValidationError

from onestream.client import UnexpectedResponse, kinds
from onestream.postprocess.average_precision import agreement_ap
from onestream.postprocess.detection.detect import detect
from onestream.postprocess.detection.masks import run_lengths
from onestream.postprocess.kinds import Opening
from onestream.postprocess.kinds.keypoints import Keypoints as Options
from onestream.preprocess import Decode, Definition, Output, Resize
from onestream.preprocess.geometry import Mapping
from onestream.serving.models.in_process import InProcess
from onestream.wire import run_lengths as rle
from onestream.wire.comparing import Found, compare, similarity

PICTURE = np.zeros((32, 64, 3), np.uint8)
"""Twice as wide as high: 16 rows of the letterbox are above it."""
PICTURE[8:16, 16:24] = (255, 0, 0)


def model_of(kind: str, name: str, folder: Path) -> InProcess:
    return InProcess(built_of(kind, folder).folder / f"{name}_fused")


def answer_with(label: bytes, box: list[float], **fields: np.ndarray) -> dict[str, Any]:
    """The answer with one object."""
    return {
        "boxes": np.array([[box]], np.float32),
        "scores": np.array([[0.9]], np.float32),
        "class_ids": np.zeros((1, 1), np.int32),
        "labels": np.array([[label]], object),
        **fields,
    }


def counts_of(mask: np.ndarray) -> np.ndarray:
    flat = np.concatenate([[False], mask.T.ravel()])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate([[0], changes, [mask.size]]))


@given(arrays.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_run_lengths_are_those_of_pycocotools(mask: np.ndarray) -> None:
    coco = pytest.importorskip("pycocotools.mask")
    theirs = coco.encode(np.asfortranarray(mask, np.uint8))["counts"]
    ours = rle.encode(counts_of(mask))
    np.testing.assert_array_equal(coco.decode({"size": list(mask.shape), "counts": ours}), mask)
    np.testing.assert_array_equal(rle.mask(rle.decode(theirs), (mask.shape[0], mask.shape[1])), mask)
    assert rle.area(rle.decode(theirs)) == mask.sum()


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=9))
def test_long_runs_come_back(lengths: list[int]) -> None:
    np.testing.assert_array_equal(rle.decode(rle.encode(np.array(lengths))), lengths)


def test_run_lengths_that_are_none_of_a_picture_are_refused() -> None:
    # Runs that grow and shrink by so much each; the last completes their sum to 2**64 + 16.
    most = 2**39 - 1
    there = [most * step for step in range(1, 4097)]
    runs = [0, *(run for run in [*there, *there[-2::-1]] for _ in range(2))]
    overflowing = rle.encode(np.array([*runs, 2**64 + 16 - sum(runs)]))
    assert rle.decode(overflowing).sum() == 16
    with pytest.raises(ValueError, match="run lengths of 16 pixels"):
        rle.mask(rle.decode(overflowing), (4, 4))
    with pytest.raises(ValueError, match="ascii"):
        rle.decode("€")


@given(arrays.arrays(bool, (2, 7, 9)))
def test_what_two_masks_have_in_common(masks: np.ndarray) -> None:
    assert rle.common(counts_of(masks[0]), counts_of(masks[1])) == (masks[0] & masks[1]).sum()


@given(
    st.tuples(st.integers(8, 40), st.integers(8, 40)),
    st.tuples(*[st.floats(0, 1)] * 4),
    arrays.arrays(np.float32, (2, 5, 6), elements=st.floats(-1, 1, width=32)),
)
def test_a_mask_is_the_map_within_the_box(
    size_hw: tuple[int, int], corners: tuple[float, ...], maps: np.ndarray
) -> None:
    torch = pytest.importorskip("torch")
    height, width = size_hw
    mapping = Mapping(size_hw, (20, 24), (20 / height, 24 / width), (0.0, 0.0))
    low, high = np.minimum(corners[:2], corners[2:]), np.maximum(corners[:2], corners[2:])
    box = np.array([[*(low * (width, height)), *(high * (width, height))]], np.float32)
    values = np.array([[0.7, -0.3]], np.float32)
    (counts,) = run_lengths(values, box, maps, mapping)
    whole = torch.tensor(np.tensordot(values[0], maps, 1))[None, None]
    levels = torch.nn.functional.interpolate(whole, size_hw, mode="bilinear")[0, 0].numpy()
    y, x = np.mgrid[:height, :width]
    inside = (x >= box[0, 0]) & (x < box[0, 2]) & (y >= box[0, 1]) & (y < box[0, 3])
    ours = rle.mask(counts, size_hw)
    assert not ours[~inside].any()
    clear = inside & (np.abs(levels) > 1e-5)  # sums are in another order
    np.testing.assert_array_equal(ours[clear], (levels > 0)[clear])


def test_pixels_of_a_picture_are_drawn_counted_and_refused(tmp_path: Path) -> None:
    answer = answer_in_process(model_of("instance_masks", MASKED_CELLS.name, tmp_path), PICTURE)
    result = kinds.read("instance_masks", "m", answer, "", 0)
    expected = PICTURE[..., 0] > 0
    differs = np.argwhere(result.masks[0] != expected).tolist()
    assert differs == [[8, 16], [8, 23], [15, 16], [15, 23]], "at a corner the interpolated map is below 0"
    assert result.records(is_flat=True)[0]["area"] == expected.sum() - 4 == result.areas[0]
    assert result.to_coco(1)[0]["segmentation"] == {"size": [32, 64], "counts": result.run_lengths[0]}
    drawn = np.asarray(result.draw(Image.new("RGB", (64, 32), (0, 0, 255))))
    assert (drawn[8:16, 17:23] != (0, 0, 255)).any(axis=-1).all()
    with pytest.raises(UnexpectedResponse, match="a mask for 32x64 pixels"):
        kinds.read("instance_masks", "m", answer | {"run_lengths": np.array([[b"04"]], object)}, "", 0)


def test_objects_are_the_same_by_their_masks_and_agreement_counts_them() -> None:
    def answer(rows: slice) -> dict[str, Any]:
        mask = np.zeros((20, 20), bool)
        mask[rows, 2:18] = True
        return answer_with(b"cup", [2, 2, 18, 18], run_lengths=np.array([[rle.encode(counts_of(mask))]], object))

    upper, most, lower = answer(slice(2, 10)), answer(slice(2, 9)), answer(slice(11, 18))
    assert [pair.iou for pair in compare("instance_masks", upper, most).same] == pytest.approx([7 / 8])
    assert compare("instance_masks", upper, lower).lost == [0]
    pair = (Found.of("instance_masks", upper), Found.of("instance_masks", most))
    assert agreement_ap([pair], 100) == pytest.approx(0.8), "the IoU thresholds 0.5 to 0.85 of those to 0.95"


def test_points_are_in_pixels_of_the_picture_and_within_it(tmp_path: Path) -> None:
    poses = model_of("keypoints", POSES.name, tmp_path)
    none, result = (
        kinds.read("keypoints", "m", answer_in_process(poses, picture), "", 0)
        for picture in (np.zeros_like(PICTURE), PICTURE)
    )
    assert len(none) == 0
    middle = np.array([16 + CELL / 2, 8 + CELL / 2])
    expected = np.clip(middle + np.array(POINTS)[:, :2], 0, (64, 32))
    np.testing.assert_allclose(result.keypoints[0], expected, atol=1e-4)  # rounding of float32
    assert result.point_scores[0].tolist() == [score for _, _, score in POINTS]
    (one,) = result
    assert [name for name, point in one.points.items() if point.is_seen] == ["left", "right"]
    assert one.points["left"][:2] == pytest.approx(expected[0])
    assert result.to_coco(7)[0]["keypoints"][:3] == pytest.approx([*expected[0], 1])
    assert result.records(is_flat=True)[0]["left_x"] == pytest.approx(expected[0, 0])


def test_a_point_that_is_not_finite_drops_its_object() -> None:
    options = Options(family="yolo", points=("a",), labels=("x",))
    dropped: list[int] = []
    definition = Definition(operations=(Decode(), Resize(mode="exact", size=(32, 32)), Output()))
    opened = options.open(Opening(definition, dropped=dropped.append))
    boxes = np.array([[[0, 0, 4, 4], [8, 8, 12, 12]]], np.float32)
    values = np.array([[[1, 1, 1], [9, np.nan, 1]]], np.float32)
    outputs = (boxes, np.array([[0.9, 0.8]], np.float32), np.zeros((1, 2), np.int32), values)
    (answer,) = opened(dict(zip(options.network_gives, outputs, strict=True)), [(32, 32)])
    assert (answer["keypoints"].shape, dropped) == ((1, 1, 1, 2), [1])


def test_what_the_options_refuse() -> None:
    with pytest.raises(ValidationError, match="skeleton has 'hand', which is not among the points"):
        Options(family="yolo", points=("foot",), skeleton=(("foot", "hand"),))
    with pytest.raises(ValidationError, match="normalized would scale the boxes alone"):
        Options(family="boxes", normalized=True)


@given(
    st.lists(st.tuples(*[st.floats(-50, 150)] * 2, st.sampled_from([0.1, 0.9])), min_size=17, max_size=17),
    st.floats(0, 40),
)
def test_similarity_is_that_of_pycocotools(points: list[tuple[float, float, float]], moved: float) -> None:
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    one = np.array([points])
    other = one + np.array([moved, -moved / 2, 0])
    area = 53.0 * 100
    shown = one[0, :, 2] >= 0.25
    evaluation = cocoeval.COCOeval(iouType="keypoints")
    evaluation.params.imgIds, evaluation.params.catIds = [1], [1]
    flat = np.concatenate([one[0, :, :2], shown[:, None]], axis=1).ravel()
    truth = {"keypoints": flat, "area": area, "bbox": [0, 0, 100, 100], "id": 1}
    evaluation._gts[1, 1] = [truth]
    evaluation._dts[1, 1] = [{"keypoints": other[0].ravel(), "score": 1.0}]
    if shown.any():
        assert similarity(one, other, np.array([area]))[0, 0] == pytest.approx(evaluation.computeOks(1, 1)[0, 0])


def test_objects_are_the_same_by_their_points_and_agreement_counts_them() -> None:
    def answer(shift: float) -> dict[str, np.ndarray]:
        points = np.array([[[[50 + shift, 60], [70, 80]]]], np.float32)
        return answer_with(b"person", [10, 10, 110, 110], keypoints=points, point_scores=np.float32([[[0.9, 0.1]]]))

    near, far = compare("keypoints", answer(0), answer(2)), compare("keypoints", answer(0), answer(900))
    assert [pair.moved_px for pair in near.same] == pytest.approx([2])
    assert (len(far.same), far.lost, far.added) == (0, [0], [0])
    one_point = {name: answer(0)[name][:, :, :1] for name in ("keypoints", "point_scores")}
    assert compare("keypoints", answer(0), answer(0) | one_point).lost == [0], "as of another version in a rollout"
    for shift, expected in ((0.0, 1.0), (900.0, 0.0)):
        pair = (Found.of("keypoints", answer(0)), Found.of("keypoints", answer(shift)))
        assert agreement_ap([pair], 100) == pytest.approx(expected)


def test_corners_are_in_pixels_of_the_picture_and_boxes_around_them(tmp_path: Path) -> None:
    answer = answer_in_process(model_of("oriented_boxes", TURNED_CELLS.name, tmp_path), PICTURE)
    result = kinds.read("oriented_boxes", "m", answer, "", 0)
    half = CELL / 2
    upright = np.array([[-half, -half], [half, -half], [half, half], [-half, half]])
    turn = np.array([[np.cos(ANGLE), np.sin(ANGLE)], [-np.sin(ANGLE), np.cos(ANGLE)]])
    expected = upright @ turn + (20, 12)
    np.testing.assert_allclose(result.quads[0], expected, atol=1e-4)  # rounding of float32
    np.testing.assert_allclose(result.boxes[0], [*expected.min(0), *expected.max(0)], atol=1e-4)
    ((name, (line,)),) = result.to_dota("P0001").items()
    assert (name, *line.split()[:2]) == ("0", "P0001", "1.0000")
    assert result.records(is_flat=True)[0]["corner1_x"] == result.quads[0, 0, 0]
    assert np.asarray(result.draw(Image.fromarray(PICTURE)))[12, 25].any(), "the right side, which is no longer upright"


def test_turned_boxes_suppress_by_the_overlap_of_what_they_cover() -> None:
    """Two long boxes that cross cover little of each other, though the boxes around them are the same."""
    boxes = np.array([[10, 45, 90, 55]] * 4, np.float32)
    scores, classes = np.float32([0.9, 0.8, 0.7, 0.6]), np.int32([0, 0, 0, 1])
    angles = np.array([np.pi / 4, -np.pi / 4, np.pi / 4 + 0.02, np.pi / 4], np.float32)
    bounds: Any = {"score_threshold": 0.5, "iou_threshold": 0.5, "max_detections": 10}
    plain = Mapping((100, 100), (100, 100), (1.0, 1.0), (0.0, 0.0))
    found = detect(boxes, scores, classes, plain, angles=angles, **bounds)
    assert found.places.tolist() == [0, 1, 3], "the last is of another class"
    np.testing.assert_allclose(found.boxes[0], found.boxes[1], atol=1e-3)
