"""Keypoints go where their pictures go: a marked dot is found again by the pixels themselves, and left stays left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from definitions import in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_sets import assert_one_bad, only_batch, save_turned, stretched
from PIL import Image

from onestream.preprocess import BadDataset, CenterCrop, Definition, Letterbox
from onestream.preprocess.training import (
    Augmentation,
    DetectionFiles,
    DetectionLoader,
    DetectionSample,
    read_coco,
    visible_keypoints,
)
from onestream.preprocess.training.detection.files import FoundObject
from onestream.preprocess.variation import variation_mapping

LETTERBOX, EXACT = in_levels(Letterbox(size=(120, 128), value=0)), stretched(110, 100)
NAMES = ["left_hand", "right_hand", "nose"]
"""The first is a red dot, the second a blue one, the third a green one."""
CHANNELS = (0, 2, 1)
PAIRS = [("left_hand", "right_hand")]
MOVES: list[dict[str, Any]] = [
    {"op": "flip"},
    {"op": "flip", "axis": "vertical"},
    {"op": "rotation", "degrees": [-180, 180]},
    {"op": "affine", "degrees": [-20, 20], "translate": [0.1, 0.1], "scale": [0.8, 1.4], "shear_x": [-10, 10]},
    {"op": "perspective", "distortion": 0.3},
    {"op": "box", "area": [0.5, 1.0]},
]
_RADIUS = 6


def write_people(folder: Path, count: int = 16) -> dict[str, Any]:
    """COCO's content: pictures with an object each, whose three keypoints are dots; the second of every third hides."""
    random = np.random.default_rng(5)
    images, annotations = [], []
    for number in range(count):
        height, width = (int(side) for side in random.integers(150, 300, 2))
        pixels = np.zeros((height, width, 3), np.uint8)
        rows, columns = np.mgrid[:height, :width]
        keypoints: list[int] = []
        for place, channel in enumerate(CHANNELS):
            x, y = (int(random.integers(2 * _RADIUS, side - 2 * _RADIUS)) for side in (width, height))
            pixels[..., channel][(rows - y) ** 2 + (columns - x) ** 2 <= _RADIUS**2] = 255
            keypoints += [x, y, 1 if place == 1 and number % 3 == 0 else 2]
        save_turned(folder / f"{number:03}.png", pixels, (1, 6, 3, 8)[number % 4])
        images.append({"id": number, "file_name": f"{number:03}.png", "height": height, "width": width})
        annotations.append(
            {"id": 50 + number, "image_id": number, "category_id": 1, "bbox": [0, 0, width, height],
             "keypoints": keypoints, "num_keypoints": 3}
        )  # fmt: skip
    categories = [{"id": 1, "name": "person", "keypoints": NAMES, "skeleton": [[1, 3]]}, {"id": 2, "name": "cup"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def read(folder: Path, content: dict[str, Any], **options: Any) -> DetectionFiles:
    (folder / "people.json").write_text(json.dumps(content))
    return read_coco(folder / "people.json", images=folder, **{"flip_pairs": PAIRS, **options})


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> DetectionFiles:
    """16 pictures, stored in four orientations."""
    folder = tmp_path_factory.mktemp("people")
    return read(folder, write_people(folder))


def dot(image: np.ndarray, channel: int) -> np.ndarray | None:
    """The middle of what is bright in a channel, x y; None where it is at the border, or of nothing."""
    bright = image[..., channel] > 127
    edge = bright[0].any() or bright[-1].any() or bright[:, 0].any() or bright[:, -1].any()
    if edge or bright.sum() < 6:
        return None
    rows, columns = bright.nonzero()
    middle: np.ndarray = np.array([columns.mean() + 0.5, rows.mean() + 0.5])
    return middle


def check_dots(image: np.ndarray, keypoints: np.ndarray, *, mirrored: bool) -> int:
    """How many of an image's dots, each by itself, have their keypoint within a pixel; mirrored, left is right."""
    compared = 0
    for number, channel in enumerate((CHANNELS[1], CHANNELS[0], CHANNELS[2]) if mirrored else CHANNELS):
        found = dot(image, channel)
        if found is not None:
            (x, y, visibility) = keypoints[number]
            assert visibility in (1, 2)
            np.testing.assert_allclose((x, y), found, atol=1)
            compared += 1
    return compared


def is_mirrored(located: Any) -> bool:
    """By where three corners of the picture come to lie."""
    height, width = located.source_hw
    one, two, three = located.points_to_canvas(np.array([(0.0, 0), (width, 0), (0, height)]))
    return bool(np.linalg.det(np.array([two - one, three - one])) < 0)


@pytest.mark.parametrize("definition", [LETTERBOX, EXACT])
def test_keypoints_stay_on_their_dots(people: DetectionFiles, definition: Definition) -> None:
    with DetectionLoader(definition, people, batch_size=5, threads=1) as evaluation:
        for batch in evaluation:
            for image, keypoints in zip(batch.images.numpy(), batch.keypoints, strict=True):
                assert keypoints.dtype == torch.float32
                assert check_dots(image, keypoints[0].numpy(), mirrored=False) == 3
    compared = {False: 0, True: 0}
    chain = Augmentation(MOVES, min_visible=0)
    with DetectionLoader(definition, people, batch_size=4, train=True, augmentation=chain, threads=1) as loader:
        for batch in (batch for _ in range(3) for batch in loader):
            for image, keypoints, located in zip(batch.images.numpy(), batch.keypoints, batch.mappings, strict=True):
                mirrored = is_mirrored(located)
                compared[mirrored] += check_dots(image, keypoints[0].numpy(), mirrored=mirrored)
    assert min(compared.values()) > 15


def test_a_mosaic_has_the_keypoints_of_all_its_parts(people: DetectionFiles) -> None:
    chain = Augmentation([{"op": "mosaic", "scale": [0.9, 1.1]}], min_visible=0)
    seen = 0
    with DetectionLoader(LETTERBOX, people, batch_size=4, train=True, augmentation=chain) as loader:
        for batch in loader:
            for image, boxes, keypoints in zip(batch.images.numpy(), batch.boxes, batch.keypoints, strict=True):
                assert keypoints.shape == (len(boxes), 3, 3)
                for number, channel in enumerate(CHANNELS):
                    for x, y, visibility in keypoints[:, number].tolist():
                        inside = 2 <= x < image.shape[1] - 2 and 2 <= y < image.shape[0] - 2
                        if visibility and inside:
                            around = image[int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2, channel]
                            # Of dots that a part's border cuts half is left.
                            assert around.max() > 100
                            seen += 1
    assert seen > 40


def test_hidden_ones_stay_hidden_and_what_leaves_is_no_longer_labelled(tmp_path: Path) -> None:
    """The middle 120 of 200 columns are kept: x from 40 to 160. An object that is dropped takes its keypoints along."""
    content = write_people(tmp_path, count=1)
    Image.new("RGB", (200, 100)).save(tmp_path / "000.png")
    content["images"][0].update(width=200, height=100)
    content["annotations"] = [
        {"image_id": 0, "category_id": 1, "bbox": [0, 0, 5, 5], "keypoints": [2, 2, 2] * 3},
        {"image_id": 0, "category_id": 1, "bbox": [0, 0, 200, 100], "keypoints": [39, 50, 2, 100, 99, 1, 160, 0, 2]},
        {"image_id": 0, "category_id": 2, "bbox": [90, 40, 40, 40]},
    ]
    batch = only_batch(DetectionLoader(in_levels(CenterCrop(size=(100, 120))), read(tmp_path, content), batch_size=1))
    assert batch.class_ids[0].tolist() == [0, 1]
    # One without any has those that are not labelled.
    assert batch.keypoints[0].tolist() == [[[0, 0, 0], [60.5, 99.5, 1], [0, 0, 0]], [[0, 0, 0]] * 3]


@given(st.booleans(), st.booleans(), st.booleans())
def test_pairs_change_places_in_a_mirror_and_not_in_a_turn(across: bool, down: bool, turned: bool) -> None:
    operations: list[dict[str, Any]] = [{"op": "flip", "probability": float(across)}]
    operations += [{"op": "flip", "axis": "vertical", "probability": float(down)}]
    operations += [{"op": "rotation", "degrees": [30, 30]}] if turned else []
    variation = Augmentation(operations).draw((80, 90), seed=0, epoch=0, index=0, definition=EXACT)
    located = variation_mapping(EXACT, variation, (80, 90))
    keypoints = np.array([[[30, 40, 2], [50, 40, 1], [45, 30, 2], [0, 0, 0]]], np.float32)
    moved = visible_keypoints(keypoints, located, flip_pairs=[(0, 1), (2, 3)])
    plain = visible_keypoints(keypoints, located)
    np.testing.assert_array_equal(moved, plain[:, [1, 0, 3, 2]] if across != down else plain)
    np.testing.assert_allclose(
        plain[0, :3, :2], located.points_to_canvas(keypoints[0, :3, :2].astype(np.float64)), atol=1e-3
    )
    assert plain[0, 3].tolist() == [0, 0, 0]


def test_keypoints_are_in_the_middle_of_their_pixels_and_read_where_pairs_are_given(tmp_path: Path) -> None:
    content = write_people(tmp_path, count=2)
    files = read(tmp_path, content)
    assert (files.keypoints, files.flip_pairs) == (tuple(NAMES), ((0, 1),))
    given = np.array(content["annotations"][1]["keypoints"], np.float32).reshape(1, 3, 3)
    np.testing.assert_array_equal(files.samples[1].keypoints, given + np.array([0.5, 0.5, 0]))
    assert read(tmp_path, content, flip_pairs=[]).flip_pairs == ()
    # Keypoints that are not requested may have any value.
    content["categories"][0]["keypoints"] = 17
    content["annotations"][1]["keypoints"] = {"left_hand": [3, 4]}
    boxes_only = read(tmp_path, content, flip_pairs=None)
    assert boxes_only.keypoints == ()
    with DetectionLoader(EXACT, boxes_only, batch_size=2, train=True) as loader:
        assert [tuple(one.shape) for one in next(iter(loader)).keypoints] == [(1, 0, 3)] * 2
    with pytest.raises(BadDataset, match=r"people\.json is no COCO file: annotations\.1\.keypoints: "):
        read(tmp_path, content, flip_pairs=())


@pytest.mark.parametrize(
    ("keypoints", "message"),
    [
        ([1, 1, 2], r"people\.json, annotation id 50: got 3 numbers of keypoints; expected three for each of 3"),
        ([1, 1, 2, 900, 3, 1, 0, 0, 0], r"the keypoint right_hand is x y = 900\.5 3\.5 with the visibility 1"),
        ([1, 1, 2, 3, 3, 3, 0, 0, 0], r"with the visibility 3; expected a place in the picture of \d+x\d+"),
        ([float("nan"), 1, 2, 3, 3, 1, 0, 0, 0], r"the keypoint left_hand is x y = nan 1\.5"),
    ],
)
def test_a_bad_keypoint_is_one_line(tmp_path: Path, keypoints: list[float], message: str) -> None:
    content = write_people(tmp_path, count=2)
    content["annotations"][0]["keypoints"] = keypoints
    assert_one_bad(read(tmp_path, content), message)
    read(tmp_path, content, flip_pairs=None).refuse_bad()


def test_pairs_and_keypoints_that_cannot_be_are_refused(tmp_path: Path) -> None:
    content = write_people(tmp_path, count=1)
    for pairs, message in (
        ([("left_hand", "right_foot")], r"pairs of two names, each once, of the keypoints left_hand, right_hand, nose"),
        ([("left_hand", "right_hand"), ("nose", "left_hand")], "each once"),
        ([("left_hand",)], "pairs of two names"),
    ):
        with pytest.raises(BadDataset, match=message):
            read(tmp_path, content, flip_pairs=pairs)
    content["categories"][1]["keypoints"] = ["handle"]
    with pytest.raises(BadDataset, match=r"the categories person, cup have other keypoints each; expected the same"):
        read(tmp_path, content)
    for category in content["categories"]:
        category.pop("keypoints")
    assert read(tmp_path, content, flip_pairs=[]).keypoints == ()
    picture = tmp_path / "000.png"
    without = DetectionSample.of(picture, (10, 20), [FoundObject("here", 0, (1, 1, 9, 9))])
    assert len(DetectionFiles([DetectionSample.of(picture, (10, 20), [])], ["person"], keypoints=["nose"])) == 1
    with pytest.raises(BadDataset, match=r"000\.png: keypoints have the shape \(1, 0, 3\); expected \(1, 1, 3\)"):
        DetectionFiles([without], ["person"], keypoints=["nose"])
