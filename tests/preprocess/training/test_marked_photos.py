"""Boxes and quads on real photos, through policies and long chains: what a patch changed of the canvas lies in both.

The same photo with and without a patch is varied by the same values, so that their difference shows where the patch
came to lie, whatever happened to the levels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from image_files import png_of
from sample_images import PHOTOS, photo

from onestream.preprocess import Decode, Definition, Letterbox, Output, Resize, compile
from onestream.preprocess.changes import Equalize, Posterize, Solarize
from onestream.preprocess.quads import bounding_boxes
from onestream.preprocess.training import Augmentation, visible_boxes, visible_quads
from onestream.preprocess.variation import given, variation_mapping

BYTES = Output(layout="NHWC", dtype="uint8")
DEFINITIONS = [
    Definition(operations=[Decode(), Resize(mode="exact", size=(150, 160)), BYTES]),
    Definition(operations=[Decode(), Letterbox(size=(140, 180)), BYTES]),
]
CHAINS: dict[str, list[dict[str, Any]]] = {
    "trivial augment": [{"op": "box", "area": [0.4, 1.0]}, {"op": "flip"}, {"op": "trivial_augment"}],
    "rand augment": [{"op": "flip"}, {"op": "rand_augment", "count": 3, "magnitude": 15}],
    "a dozen": [
        {"op": "flip"},
        {"op": "flip", "axis": "vertical"},
        {"op": "rotation", "degrees": [-30, 30]},
        {"op": "affine", "translate": [0.1, 0.1], "scale": [0.8, 1.2], "shear_x": [-15, 15], "shear_y": [-15, 15]},
        {"op": "perspective", "distortion": 0.3},
        {"op": "padded_crop", "padding": 30},
        {"op": "scale_jitter", "scale": [0.7, 1.5]},
        {"op": "blur", "sigma": [0.1, 1]},
        {"op": "color_jitter", "brightness": 0.3, "contrast": 0.3, "saturation": 0.5, "hue": 0.5},
        {"op": "linear_color", "brightness": 0.2, "hue": 0.1},
        {"op": "grayscale"},
        {"op": "autocontrast"},
        {"op": "sharpness"},
        {"op": "noise", "sigma": [0, 8]},
        {"op": "jpeg", "quality": [60, 95]},
        {"op": "erase", "area": [0.02, 0.1]},
    ],
}
STEPS = (Posterize, Solarize, Equalize)
"""They make a whole step of the little that the filter mixes in beside the patch, up to two pixels farther."""


def drawn_quad(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A convex quad of 2 to 11 % of a picture: a box whose corners come inwards by up to a third of half a side."""
    sides = np.array([width, height]) * random.uniform(0.2, 0.33, 2)
    first = random.uniform(0, 1, 2) * (np.array([width, height]) - sides)
    outer = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)
    quad: np.ndarray = np.abs(outer - random.uniform(0, 1 / 6, (4, 2))) * sides + first
    return quad.astype(np.float32)


def farthest_outside(quad: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far points lie beyond the edges of a convex quad, in pixels; below 0 inside."""
    (x0, y0), (x1, y1), (x2, y2) = quad[:3]
    turn = np.sign((x1 - x0) * (y2 - y1) - (y1 - y0) * (x2 - x1))
    distances = []
    for (from_x, from_y), (to_x, to_y) in zip(quad, np.roll(quad, -1, axis=0), strict=True):
        across, down = to_x - from_x, to_y - from_y
        distances.append(turn * ((x - from_x) * down - (y - from_y) * across) / np.hypot(across, down))
    farthest: np.ndarray = np.max(distances, axis=0)
    return farthest


def changed_most(one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Which pixels differ by more than the middle between most of them and the largest; None where none stands out."""
    difference = np.abs(one.astype(int) - other).max(axis=2)
    # Contrast, autocontrast and equalize of the whole canvas change a little everywhere.
    everywhere = np.percentile(difference, 75)
    if difference.max() < everywhere + 60:
        return None
    marked: np.ndarray = difference > (everywhere + difference.max()) / 2
    return marked


@pytest.mark.parametrize("name", CHAINS)
def test_what_a_patch_changes_lies_in_its_box_and_its_quad(name: str) -> None:
    random, chain = np.random.default_rng(7), Augmentation(CHAINS[name], min_visible=0)
    backends = [compile(definition, backend="dali", varied=True) for definition in DEFINITIONS]
    compared, shares = 0, []
    for number in range(48):
        definition, image = DEFINITIONS[number % 2], photo(PHOTOS[number // 2 % len(PHOTOS)])
        plain, quad = np.asarray(image), drawn_quad(random, image.width, image.height)
        rows, columns = np.mgrid[: image.height, : image.width] + 0.5
        marked = plain.copy()
        marked[farthest_outside(quad, columns, rows) <= 0] = 255 * (number // 8 % 2)
        size_hw, box = (image.height, image.width), bounding_boxes(quad[None])
        variation = chain.draw(size_hw, seed=2, epoch=0, index=number, definition=definition, objects=box)
        files, vary = [png_of(plain), png_of(marked)], partial(given, variation)
        one, other = backends[number % 2].run(files, [vary, vary])
        assert isinstance(one, np.ndarray)
        assert isinstance(other, np.ndarray)
        located = variation_mapping(definition, variation, size_hw)
        boxes, which = visible_boxes(box, located, min_visible=0)
        quads, _ = visible_quads(quad[None], located, min_visible=0)
        seen = changed_most(one, other)
        if seen is None or not which[0]:
            assert seen is None or which[0], "what is not to be seen changed the canvas"
            continue
        compared += 1
        allowed = 3 if any(isinstance(change, STEPS) for change in variation.changes) else 1
        y, x = seen.nonzero()
        found = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
        assert (found[:2] >= boxes[0][:2] - allowed).all(), (number, found, boxes, str(variation))
        assert (found[2:] <= boxes[0][2:] + allowed).all(), (number, found, boxes, str(variation))
        assert farthest_outside(quads[0], x + 0.5, y + 0.5).max() <= allowed, (number, quads, str(variation))
        shares.append(np.prod(found[2:] - found[:2]) / np.prod(boxes[0][2:] - boxes[0][:2]))
    # Most can be told, and of these most boxes are not much larger than what is seen of the patch.
    assert compared > 24
    assert np.median(shares) > 0.7
