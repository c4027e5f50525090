"""What an imported augmentation draws against what its transform draws: one distribution, number by number."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from agreement import noise
from definitions import in_levels
from lazily import Lazily

from onestream.preprocess import Resize
from onestream.preprocess.changes import Blur, Brightness, Erase, Hue, Jpeg
from onestream.preprocess.interop.torchvision_training import augmentation_from_torchvision
from onestream.preprocess.projection import Projection
from onestream.preprocess.training import Augmentation
from onestream.preprocess.variation import Variation

torch, v2 = Lazily("torch"), Lazily("torchvision.transforms.v2")
CANVAS = in_levels(Resize(mode="exact", size=(90, 120)))
COUNT = 700
FARTHEST = 1.95 * (2 / COUNT) ** 0.5
"""Two samples of one distribution are farther apart in one of a thousand cases (Kolmogorov and Smirnov)."""


def augmentation_of(*steps: Any) -> Augmentation:
    return augmentation_from_torchvision(v2.Compose(list(steps))).augmentation


def drawn(augmentation: Augmentation) -> list[Variation]:
    return [augmentation.draw((90, 120), seed=7, epoch=0, index=n, definition=CANVAS) for n in range(COUNT)]


def by_torchvision(transform: Any) -> list[dict[str, Any]]:
    torch.manual_seed(7)
    picture = torch.zeros((3, 90, 120), dtype=torch.uint8)
    return [transform.make_params([picture]) for _ in range(COUNT)]


def assert_same_distribution(ours: Any, theirs: Any) -> None:
    """Of one number, or of several in columns."""
    samples = [np.asarray(values, float).reshape(len(values), -1) for values in (ours, theirs)]
    assert samples[0].shape == samples[1].shape
    for columns in zip(*(values.T for values in samples), strict=True):
        both = np.sort(np.concatenate(columns))
        shares = [np.searchsorted(np.sort(one), both, side="right") / len(one) for one in columns]
        assert np.abs(shares[0] - shares[1]).max() < FARTHEST * (COUNT / len(ours)) ** 0.5


def test_boxes_have_the_distribution_of_either_library() -> None:
    def boxes(transform: Any) -> list[tuple[int, ...]]:
        found = [one.box for one in drawn(augmentation_of(transform))]
        return [(box.top, box.left, box.height, box.width) for box in found]

    transform = v2.RandomResizedCrop(64, scale=(0.2, 1.0), ratio=(0.6, 1.5))
    theirs = [[one[side] for side in ("top", "left", "height", "width")] for one in by_torchvision(transform)]
    assert_same_distribution(boxes(transform), theirs)
    of_timm = Lazily("timm.data.transforms").RandomResizedCropAndInterpolation
    transform = of_timm(64, scale=(0.3, 0.9), ratio=(0.8, 1.25))
    random.seed(7)
    drawn_by_timm = [transform.get_params(noise(90, 120), transform.scale, transform.ratio) for _ in range(COUNT)]
    assert_same_distribution(boxes(transform), drawn_by_timm)


@pytest.mark.parametrize("size", [100, (80, 140)])
def test_padded_crops_have_torchvisions_distribution(size: Any) -> None:
    """One is larger than the padded picture along an axis."""
    transform = v2.RandomCrop(size, padding=3, pad_if_needed=True)
    definition = in_levels(Resize(mode="exact", size=tuple(transform.size)))
    chain = augmentation_of(transform)
    ours = [chain.draw((90, 120), seed=7, epoch=0, index=n, definition=definition).box for n in range(COUNT)]
    theirs = [(one["top"] - one["padding"][1], one["left"] - one["padding"][0]) for one in by_torchvision(transform)]
    assert_same_distribution([(box.top, box.left) for box in ours], theirs)


def test_affine_transforms_have_torchvisions_distribution() -> None:
    transform = v2.RandomAffine((-20, 40), translate=(0.2, 0.1), scale=(0.7, 1.4))
    ours = []
    for variation in drawn(augmentation_of(transform)):
        matrix = np.linalg.inv(Projection((90, 120), (90, 120), variation.corners).matrix)
        matrix /= matrix[2, 2]
        degrees, scale = np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0])), np.sqrt(np.linalg.det(matrix[:2, :2]))
        # Whole pixels, found again with the error of the corners.
        across, down = np.round((matrix @ (60, 45, 1) - (60, 45, 1))[:2])
        ours.append((degrees, scale, across, down))
    theirs = [(one["angle"], one["scale"], *one["translate"]) for one in by_torchvision(transform)]
    assert_same_distribution(ours, theirs)


@pytest.mark.parametrize("distortion", [0.1, 0.5])
def test_perspectives_have_torchvisions_distribution(distortion: float) -> None:
    """Of up to 4 pixels an end that is missing shows; the others are of the largest distortion that is read."""
    transform = v2.RandomPerspective(distortion, p=1)
    before = np.array([(0, 0), (119, 0), (119, 89), (0, 89)])
    to_picture = [Projection((90, 120), (90, 120), one.corners).matrix for one in drawn(augmentation_of(transform))]
    ours = np.array([_moved(before, np.linalg.inv(matrix)) for matrix in to_picture])
    # Found again with the error of the corners, which are multiples of 2^-16 pixels.
    np.testing.assert_allclose(ours, np.round(ours), atol=1e-3)
    coefficients = [[*one["coefficients"], 1] for one in by_torchvision(transform)]
    theirs = np.array([_moved(before, np.linalg.inv(np.reshape(one, (3, 3)))) for one in coefficients])
    assert_same_distribution(np.round(ours), np.round(theirs))


def _moved(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    places = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    found: np.ndarray = places[:, :2] / places[:, 2:]
    return found


@pytest.mark.parametrize("scale", [(0.1, 0.3), (0.5, 2.0), (1.0, 1.0)])
def test_jittered_scales_have_torchvisions_distribution(scale: tuple[float, float]) -> None:
    """Sides of few pixels show how they are rounded; so does one factor, by which the longer side fits exactly."""
    jitter, crop = v2.ScaleJitter((43, 43), scale), v2.RandomCrop(43, pad_if_needed=True)
    definition = in_levels(Resize(mode="exact", size=(43, 43)))
    chain, ours, theirs = augmentation_of(jitter, crop), [], []
    for index in range(COUNT):
        variation = chain.draw((90, 120), seed=7, epoch=0, index=index, definition=definition)
        (x0, y0), (x1, _), (_, y1), _ = variation.corners
        height, width = 43 * 90 / (y1 - y0), 43 * 120 / (x1 - x0)
        ours.append((height, width, -y0 * height / 90, -x0 * width / 120))
    # Found again with the error of the corners, which are multiples of 2^-16 pixels.
    np.testing.assert_allclose(ours, np.round(ours), atol=1e-3)
    for drawn_size in by_torchvision(jitter):
        height, width = drawn_size["size"]
        place = crop.make_params([torch.zeros((3, height, width), dtype=torch.uint8)])
        left, top, *_ = place["padding"]
        theirs.append((height, width, top - place["top"], left - place["left"]))
    assert_same_distribution(np.round(ours), theirs)


def test_perspectives_of_the_smallest_pictures_are_possible() -> None:
    """Where torchvision's corners may lie on one line: ours come less far."""
    chain = Augmentation([{"op": "perspective", "distortion": 0.6, "whole_pixels": True, "probability": 1}])
    for height in (1, 2, 4, 5, 10):
        for width in (1, 4, 10):
            for index in range(50):
                assert chain.draw((height, width), seed=0, epoch=0, index=index).corners


def changes(transform: Any, kind: type[Any]) -> list[Any]:
    found = [one for variation in drawn(augmentation_of(transform)) for one in variation.changes]
    return [one for one in found if isinstance(one, kind)]


def test_strengths_have_torchvisions_distribution() -> None:
    jitter, blur, jpeg = v2.ColorJitter(0.7, hue=0.3), v2.GaussianBlur(23, (0.5, 3)), v2.JPEG((20, 60))
    theirs = by_torchvision(jitter)
    factors = [one["brightness_factor"] for one in theirs]
    assert_same_distribution([one.factor for one in changes(jitter, Brightness)], factors)
    assert_same_distribution([one.turns for one in changes(jitter, Hue)], [one["hue_factor"] for one in theirs])
    sigmas = [one["sigma"][0] for one in by_torchvision(blur)]
    assert_same_distribution([one.sigma for one in changes(blur, Blur)], sigmas)
    qualities = [one["quality"] for one in by_torchvision(jpeg)]
    assert_same_distribution([one.quality for one in changes(jpeg, Jpeg)], qualities)


def test_erased_rectangles_have_the_distribution_of_either_library() -> None:
    transform = v2.RandomErasing(1, scale=(0.05, 0.5), ratio=(0.4, 2.5))
    ours = changes(v2.Compose([v2.PILToTensor(), transform]), Erase)
    theirs = [[one[name] for name in "ijhw"] for one in by_torchvision(transform)]
    assert_same_distribution([(one.top, one.left, one.height, one.width) for one in ours], theirs)

    erasing = Lazily("timm.data.random_erasing").RandomErasing(1, min_area=0.05, max_area=0.5, device="cpu")
    ours = changes(v2.Compose([v2.PILToTensor(), erasing]), Erase)
    random.seed(7)
    erased = [erasing(torch.ones((1, 90, 120)))[0] == 0 for _ in range(COUNT)]
    theirs = [(int(one.any(dim=1).sum()), int(one.sum())) for one in erased]
    assert_same_distribution([(one.height, one.height * one.width) for one in ours], theirs)
