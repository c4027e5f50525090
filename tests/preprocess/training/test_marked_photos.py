"""Boxes, quads and masks on real photos, through policies and long chains: what a patch changed lies in them.

The same photo with and without a patch is varied by the same values, so that their difference shows where the patch
came to lie, whatever happened to the levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definitions import in_levels
from image_files import bmp_of
from image_sets import stretched
from sample_images import PHOTOS, photo

from onestream.preprocess import CenterCrop, Definition, Letterbox, Resize, compile
from onestream.preprocess.backends.base import BackendName, Compiled
from onestream.preprocess.changes import Equalize, Posterize, Solarize
from onestream.preprocess.quads import bounding_boxes
from onestream.preprocess.training import (
    Augmentation,
    moved_mask,
    visible_boxes,
    visible_quads,
)
from onestream.preprocess.variation import Variation, given, variation_transform

ROOT = Path(__file__).parents[3]
DEFINITIONS = [
    stretched(150, 160),
    in_levels(Letterbox(size=(140, 180))),
    in_levels(Resize(mode="shorter", size=160), CenterCrop(size=(150, 180))),
]
BACKENDS = ["dali", pytest.param("reference", marks=pytest.mark.slow)]
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
COUNT = 24


def drawn_quad(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A convex quad of 2 to 11 % of a picture: a box whose corners come inwards by up to a third of half a side."""
    sides = np.array([width, height]) * random.uniform(0.2, 0.33, 2)
    first = random.uniform(0, 1, 2) * (np.array([width, height]) - sides)
    outer = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)
    quad: np.ndarray = np.abs(outer - random.uniform(0, 1 / 6, (4, 2))) * sides + first
    return quad.astype(np.float32)


def mask_of(quad: np.ndarray, height: int, width: int) -> np.ndarray:
    """The pixels whose middles lie in a quad."""
    rows, columns = np.mgrid[:height, :width] + 0.5
    inside: np.ndarray = farthest_outside(quad, columns, rows) <= 0
    return inside


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


@dataclass(frozen=True)
class Patched:
    """A photo without and with a patch, as files, and where the patch is."""

    files: tuple[bytes, bytes]
    quad: np.ndarray
    mask: np.ndarray


@cache
def patched_photos() -> list[Patched]:
    """Photos of half their size with patches, black and white, at other places."""
    random, found = np.random.default_rng(7), []
    for number in range(COUNT):
        image = photo(PHOTOS[number // 2 % len(PHOTOS)]).reduce(2)
        plain, quad = np.asarray(image), drawn_quad(random, image.width, image.height)
        mask = mask_of(quad, image.height, image.width)
        marked = plain.copy()
        marked[mask] = 255 * (number // 8 % 2)
        found.append(Patched((bmp_of(plain), bmp_of(marked)), quad, mask))
    return found


@dataclass(frozen=True)
class Marked(Patched):
    """What varies a patched photo, and where the patch must come to lie."""

    definition: Definition
    variation: Variation
    boxes: np.ndarray
    quads: np.ndarray


def marked_photos(operations: list[dict[str, Any]]) -> Iterator[Marked]:
    """Each photo as a chain varies it."""
    chain = Augmentation(operations, min_visible=0)
    for number, one in enumerate(patched_photos()):
        definition, size_hw, box = DEFINITIONS[number % 3], one.mask.shape, bounding_boxes(one.quad[None])
        variation = chain.draw(size_hw, seed=2, epoch=0, index=number, definition=definition, objects=box)
        located = variation_transform(definition, variation, size_hw)
        boxes, _ = visible_boxes(box, located, min_visible=0)
        quads, _ = visible_quads(one.quad[None], located, min_visible=0)
        yield Marked(one.files, one.quad, one.mask, definition, variation, boxes, quads)


def seen_of(marked: Marked, variation: Variation, backend: BackendName) -> np.ndarray | None:
    """Which pixels of the canvas the patch changes most."""
    vary = partial(given, variation)
    one, other = compiled(marked.definition, backend).run(marked.files, [vary, vary])
    assert isinstance(one, np.ndarray)
    assert isinstance(other, np.ndarray)
    return changed_most(one, other)


@cache
def compiled(definition: Definition, backend: BackendName) -> Compiled:
    return compile(definition, backend=backend, varied=True)


def check_seen(seen: np.ndarray | None, marked: Marked) -> float | None:
    """No pixel lies more than one outside the box and the quad; the share of the box from first to last, if seen."""
    if seen is None or not len(marked.boxes):
        assert seen is None, "what is not to be seen changed the canvas"
        return None
    (box,), (quad,), (y, x) = marked.boxes, marked.quads, seen.nonzero()
    found = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
    assert (found[:2] >= box[:2] - 1).all(), (found, box, str(marked.variation))
    assert (found[2:] <= box[2:] + 1).all(), (found, box, str(marked.variation))
    assert farthest_outside(quad, x + 0.5, y + 0.5).max() <= 1, (quad, str(marked.variation))
    return float(np.prod(found[2:] - found[:2]) / np.prod(box[2:] - box[:2]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CHAINS)
def test_what_a_patch_changes_lies_in_its_box_and_its_quad(name: str, backend: BackendName) -> None:
    """Always, within a pixel, and changes of levels move nothing.

    But for those that make a whole step of the little that the filter mixes in beside the patch.
    """
    shares, compared = [], 0
    for marked in marked_photos(CHAINS[name]):
        still = marked.variation.model_copy(update={"changes": ()})
        share = check_seen(seen_of(marked, still, backend), marked)
        shares += [] if share is None else [share]
        changes = marked.variation.changes
        if changes and not any(isinstance(change, STEPS) for change in changes):
            compared += check_seen(seen_of(marked, marked.variation, backend), marked) is not None
    # Most can be told, and of these most boxes are not much larger than what is seen of the patch.
    assert len(shares) > 0.6 * COUNT
    assert np.median(shares) > 0.75
    assert compared > 0.25 * COUNT


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_patch_changes_lies_in_its_mask(backend: BackendName) -> None:
    """The mask's pixels and their neighbours, after a warp too."""
    shares = []
    for marked in marked_photos([*CHAINS["a dozen"][:7], {"op": "warp", "distance": 0.08, "spacing": 0.6}]):
        seen = seen_of(marked, marked.variation, backend)
        mask = moved_mask(marked.mask.astype(np.uint8), marked.definition, marked.variation).astype(bool)
        if seen is not None:
            assert not (seen & ~with_neighbours(mask)).any(), str(marked.variation)
            shares.append(seen.sum() / mask.sum())
    assert len(shares) > 0.6 * COUNT
    assert 0.9 < np.median(shares) < 1.1


def with_neighbours(mask: np.ndarray) -> np.ndarray:
    rows = np.pad(mask, 1)
    rows = rows[:-2] | rows[1:-1] | rows[2:]
    around: np.ndarray = rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]
    return around
