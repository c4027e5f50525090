"""Masks of objects: their pixels in a picture and in a frame, and their run lengths as pycocotools has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detectors import MASKED_CELLS
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kind_networks import answer_in_process, built_of
from PIL import Image

from onestream.client import UnexpectedResponse, kinds
from onestream.postprocess.average_precision import agreement_ap
from onestream.postprocess.detection.masks import run_lengths
from onestream.preprocess.geometry import Mapping
from onestream.serving.models.in_process import InProcess
from onestream.wire import run_lengths as rle
from onestream.wire.comparing import Found, compare


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
def test_a_mask_is_the_interpolated_map_within_the_box(
    size_hw: tuple[int, int], corners: tuple[float, ...], maps: np.ndarray
) -> None:
    torch = pytest.importorskip("torch")
    height, width = size_hw
    canvas = (20, 24)
    mapping = Mapping(size_hw, canvas, (canvas[0] / height, canvas[1] / width), (0.0, 0.0))
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
    model = InProcess(built_of("instance_masks", tmp_path).folder / f"{MASKED_CELLS.name}_fused")
    picture = np.zeros((32, 64, 3), np.uint8)  # twice as wide as high: 16 rows of the letterbox are above it
    picture[8:16, 16:24] = (255, 0, 0)
    answer = answer_in_process(model, picture)
    result = kinds.read("instance_masks", "m", answer, "", 0)
    expected = picture[..., 0] > 0
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
        return {
            "boxes": np.array([[[2, 2, 18, 18]]], np.float32),
            "scores": np.array([[0.9]], np.float32),
            "class_ids": np.zeros((1, 1), np.int32),
            "labels": np.array([[b"cup"]], object),
            "run_lengths": np.array([[rle.encode(counts_of(mask))]], object),
        }

    upper, most, lower = answer(slice(2, 10)), answer(slice(2, 9)), answer(slice(11, 18))
    assert [pair.iou for pair in compare("instance_masks", upper, most).same] == pytest.approx([7 / 8])
    assert compare("instance_masks", upper, lower).lost == [0]
    pair = (Found.of("instance_masks", upper), Found.of("instance_masks", most))
    assert agreement_ap([pair], 100) == pytest.approx(0.8), "the IoU thresholds 0.5 to 0.85 of those to 0.95"
