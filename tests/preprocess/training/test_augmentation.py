"""The short form of a chain: what it draws, that this depends on seed, epoch and sample only, and how it is written."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_sets import EVERYTHING
from pydantic import ValidationError

from onestream.preprocess import Decode, Definition, Resize
from onestream.preprocess.changes import Linear, recolored
from onestream.preprocess.geometry import Window
from onestream.preprocess.training import Augmentation

SIDES = st.integers(1, 3000)
STRONG = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)


FIRST = [
    [0.945641994, 0.21082364, -0.288252622, 17.0798912],
    [-0.183621496, 0.876690984, 0.17514354, 17.0798912],
    [0.742408335, -0.596603811, 0.722408414, 17.0798912],
]
LATE = [
    [1.64168489, 0.110329539, -0.119016193, -27.7598057],
    [-0.0679528043, 1.6222713, 0.0786797926, -27.7598057],
    [0.327113897, -0.234138489, 1.54002285, -27.7598057],
]
KNOWN = {(0, 0, 0): ((86, 42, 140, 121), False, FIRST), (2**40, 500, 2**31): ((38, 34, 223, 267), False, LATE)}


@given(SIDES, SIDES, st.integers(0, 2**40), st.integers(0, 500), st.integers(0, 2**31))
def test_the_box_lies_in_the_image_and_keeps_its_shape(h: int, w: int, seed: int, epoch: int, index: int) -> None:
    variation = STRONG.draw((h, w), seed=seed, epoch=epoch, index=index)
    box = variation.box
    assert 0 <= box.top < box.top + box.height <= h
    assert 0 <= box.left < box.left + box.width <= w
    again = STRONG.draw((h, w), seed=seed, epoch=epoch, index=index)
    assert (again.box, again.flip) == (box, variation.flip)
    np.testing.assert_array_equal(again.color, variation.color)


@pytest.mark.parametrize("size_hw", [(1, 1), (1, 3000), (3000, 1), (5, 4000)])
def test_where_no_box_fits_the_centre_is_taken(size_hw: tuple[int, int]) -> None:
    box = Augmentation(area=(1, 1)).draw(size_hw, seed=0, epoch=0, index=0).box
    assert min(size_hw) in (box.height, box.width)
    assert abs((size_hw[0] - box.height) // 2 - box.top) == 0
    assert abs((size_hw[1] - box.width) // 2 - box.left) == 0


def test_a_color_without_strength_changes_nothing_and_each_strength_does_its_part() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    assert Augmentation().draw((20, 30), seed=0, epoch=0, index=0).color is None

    def colored(**strength: float) -> np.ndarray:
        color = Augmentation(**strength).draw((20, 30), seed=0, epoch=0, index=5).color
        assert color is not None
        return recolored(pixels, color)

    brighter, contrasted = colored(brightness=0.5), colored(contrast=0.5)
    factor = brighter[pixels == 100].astype(float).mean() / 100
    assert 0.5 <= factor <= 1.5
    assert abs(factor - 1) > 0.01
    np.testing.assert_array_equal(contrasted[pixels == 128], 128)
    for only_hue_or_saturation in (colored(saturation=0.5), colored(hue=0.2)):
        luma = np.array([0.299, 0.587, 0.114])
        inside = ((only_hue_or_saturation > 0) & (only_hue_or_saturation < 255)).all(axis=2)
        moved = np.abs(only_hue_or_saturation @ luma - pixels @ luma)[inside]
        # Y of YIQ is kept; rounding three channels moves it by half a level.
        assert moved.max() <= 0.51
        assert (only_hue_or_saturation != pixels).mean() > 0.5
    gray = np.repeat(pixels[:, :, :1], 3, axis=2)
    color = Augmentation(saturation=1).draw((20, 30), seed=0, epoch=0, index=5).color
    assert color is not None
    np.testing.assert_array_equal(recolored(gray, color), gray)
    definition = Definition(operations=[Decode(color="gray"), Resize(mode="exact", size=(9, 9))])
    color = STRONG.draw((9, 9), seed=0, epoch=0, index=1, definition=definition).color
    assert color is not None
    assert color.shape == (1, 2), "a brightness and a contrast"


def test_the_short_form_is_a_list_of_operations() -> None:
    assert Augmentation() == Augmentation([{"op": "box"}, {"op": "flip"}])
    assert Augmentation(area=(0.3, 1.0), flip=0.2, hue=0.1, min_visible=0.4) == Augmentation(
        [{"op": "box", "area": (0.3, 1.0)}, {"op": "flip", "probability": 0.2}, {"op": "linear_color", "hue": 0.1}],
        min_visible=0.4,
    )
    with pytest.raises(ValidationError, match="area"):
        Augmentation([{"op": "flip"}], area=(0.3, 1.0))


def test_the_short_form_draws_what_it_always_drew() -> None:
    """Box, flip and factors as they were when these were all: a run that is continued sees what it would have seen."""
    strong = Augmentation(brightness=0.4, contrast=0.3, saturation=0.2, hue=0.1)
    for (seed, epoch, index), (box, flip, factors) in KNOWN.items():
        drawn = strong.draw((375, 500), seed=seed, epoch=epoch, index=index)
        assert (drawn.box, drawn.flip, drawn.upside_down) == (Window(*box), flip, False)
        (change,) = drawn.changes
        assert isinstance(change, Linear)
        # cos and sin of other machines may differ in the last bit of float64.
        np.testing.assert_allclose(change.factors, factors, rtol=1e-6, atol=1e-7)


def test_an_augmentation_is_written_and_read() -> None:
    assert Augmentation.model_validate_json(EVERYTHING.model_dump_json()) == EVERYTHING
    assert pickle.loads(pickle.dumps(EVERYTHING)) == EVERYTHING
    text = "operations:\n- {op: box}\n- {op: trivial_augment}\nfill: 114\n"
    assert Augmentation.from_yaml(text) == Augmentation([{"op": "box"}, {"op": "trivial_augment"}], fill=114)
    assert Augmentation.from_yaml("{area: [0.5, 1]}") == Augmentation(area=(0.5, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"op": "rotation", "degrees": [10, -10]},
        {"op": "affine", "shear_x": [10, -10]},
        {"op": "perspective", "distortion": 0.7},
        {"op": "blur", "sigma": [0, 2]},
        {"op": "jpeg", "quality": [0, 90]},
        {"op": "jpeg", "quality": [90, 30]},
        {"op": "flip", "axis": "diagonal"},
        {"op": "erase", "probability": 2},
        {"op": "rand_augment", "magnitude": 31},
        {"op": "scale_jitter", "scale": [0, 1]},
        {"op": "posterize", "bits": 0},
        {"area": (0.5, 0.1)},
        {"area": (0.5, 1.1)},
        {"ratio": (0, 1)},
        {"flip": 1.5},
        {"hue": 0.6},
        {"shear": 1},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"(?s){wrong.get('op', '')}.*{list(wrong)[-1]}"):
        Augmentation(**({"operations": [wrong]} if "op" in wrong else wrong))
