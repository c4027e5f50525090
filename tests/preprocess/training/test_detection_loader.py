"""Boxes go where their pictures go: found again by the pixels themselves, with and without augmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from box_sets import Drawn, drawn_set, write_coco
from hypothesis import given
from hypothesis import strategies as st
from image_sets import CROPPED, only_batch

from onestream.preprocess import (
    BadSample,
    CenterCrop,
    Decode,
    Definition,
    Output,
    Resize,
    compile,
)
from onestream.preprocess.geometry import Mapping, visible_share
from onestream.preprocess.plan import Planner
from onestream.preprocess.training import Augmentation, DetectionFiles, DetectionLoader, read_coco

LETTERBOX = CROPPED
CROP = Definition(operations=(Decode(), Resize(mode="shorter", size=110), CenterCrop(size=(100, 90)), Output()))
EXACT = Definition(operations=(Decode(color="gray"), Resize(mode="exact", size=(80, 96), filter="bicubic")))
DEFINITIONS = [pytest.param(LETTERBOX, id="letterbox"), pytest.param(CROP, id="crop"), pytest.param(EXACT, id="exact")]
TURNED = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "flip"},
        {"op": "rotation", "degrees": [-30, 30]},
        {"op": "perspective", "distortion": 0.5},
    ],
    min_visible=0.3,
)


def read(folder: Path, pictures: list[Drawn]) -> DetectionFiles:
    return read_coco(write_coco(folder, pictures), images=folder / "photos")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DetectionFiles:
    """14 pictures with 0 to 3 objects each, stored in four orientations."""
    return read(tmp_path_factory.mktemp("files"), drawn_set(14))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> DetectionFiles:
    """24 pictures with one large object each."""
    random = np.random.default_rng(3)
    pictures = []
    for number in range(24):
        height, width = (int(side) for side in random.integers(130, 400, 2))
        x0, y0 = int(random.integers(0, width - 60)), int(random.integers(0, height - 60))
        x1, y1 = int(random.integers(x0 + 50, width + 1)), int(random.integers(y0 + 50, height + 1))
        box = (0, (float(x0), float(y0), float(x1), float(y1)))
        pictures.append(Drawn(f"{number:03}.png", (height, width), (box,), (1, 6, 3, 8)[number % 4]))
    return read(tmp_path_factory.mktemp("single"), pictures)


def collect(loader: DetectionLoader) -> dict[int, tuple[np.ndarray, np.ndarray, list[int], Mapping]]:
    """Image, boxes, class ids and mapping of each index of an epoch."""
    found = {}
    for batch in loader:
        for place, index in enumerate(batch.indices.tolist()):
            if index >= 0:
                boxes, classes = batch.boxes[place].numpy(), batch.class_ids[place].tolist()
                found[index] = batch.images[place].numpy(), boxes, classes, batch.mappings[place]
    return found


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_without_augmentation_images_are_bit_equal_to_what_serving_runs(
    files: DetectionFiles, definition: Definition
) -> None:
    served = compile(definition, max_batch_size=3, backend="dali").run([files.read(i) for i in range(len(files))])
    with DetectionLoader(definition, files, batch_size=5, threads=2) as loader:
        assert loader.classes == files.classes
        made = collect(loader)
    assert sorted(made) == list(range(len(files)))
    for index, (image, boxes, classes, located) in made.items():
        np.testing.assert_array_equal(image, served[index])
        sample = files.samples[index]
        assert located == Planner(definition).mapping(sample.size_hw)
        if definition is not CROP:  # nothing leaves the canvas
            assert classes == sample.class_ids.tolist()
            np.testing.assert_array_equal(boxes, located.to_canvas(sample.boxes))
            # float32 on the canvas; a source pixel is up to 4 times as small.
            np.testing.assert_allclose(located.to_source(boxes), sample.boxes, atol=1e-4)


def bright_extent(image: np.ndarray) -> list[int]:
    """x0 y0 x1 y1 of the pixels above half the brightest level of a picture (height, width, channels)."""
    levels = image[..., 0].astype(int)
    rows, columns = (levels > 127).any(axis=1).nonzero()[0], (levels > 127).any(axis=0).nonzero()[0]
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize(
    ("augmentation", "off"),
    [
        # A pixel is bright where its centre is in the box: half a pixel, and the rounding of levels.
        (None, 0.55),
        (Augmentation(area=(0.3, 1.0), flip=0.0), 0.55),
        (Augmentation(area=(0.3, 1.0), flip=1.0), 0.55),
        # A corner that is nearly a point is thinner than a pixel over some of its length.
        (TURNED, 2),
    ],
)
def test_a_bright_object_is_found_where_its_box_says(
    single: DetectionFiles, definition: Definition, augmentation: Augmentation | None, off: float
) -> None:
    train = augmentation is not None
    seen = 0
    options: dict[str, Any] = {"batch_size": 8, "train": train, "augmentation": augmentation, "threads": 2}
    with DetectionLoader(definition.pixels(), single, **options) as loader:
        for _ in range(3 if train else 1):
            for image, boxes, _, located in collect(loader).values():
                assert located.canvas_hw == image.shape[:2]
                for box in boxes:
                    if min(box[2] - box[0], box[3] - box[1]) >= 3:
                        np.testing.assert_allclose(bright_extent(image), box, atol=off)
                        seen += 1
    assert seen >= (60 if train else 20)


def test_objects_of_which_little_is_left_are_dropped_and_the_others_cut(tmp_path: Path) -> None:
    """The middle 100 of 200 columns are kept: x from 50 to 150."""
    spans = ((0.0, 66.0), (0.0, 67.0), (0.0, 49.0), (60.0, 90.0), (40.0, 160.0))
    objects = tuple((0, (x0, 20.0, x1, 60.0)) for x0, x1 in spans)
    files = read(tmp_path, [Drawn("0.png", (100, 200), objects)])
    definition = Definition(operations=(Decode(), CenterCrop(size=(100, 100))))
    batch = only_batch(DetectionLoader(definition, files, batch_size=1))
    # 16 of 66 columns are less than a quarter; 17 of 67 are more.
    assert batch.boxes[0].tolist() == [[0, 20, 17, 60], [10, 20, 40, 60], [0, 20, 100, 60]]
    assert batch.class_ids[0].tolist() == [0, 0, 0]
    assert batch.class_ids[0].dtype == torch.int64
    assert batch.boxes[0].dtype == torch.float32


@pytest.mark.parametrize("min_visible", [0.0, 0.25, 0.8, 1.0])
def test_min_visible_is_what_is_left_of_every_object(files: DetectionFiles, min_visible: float) -> None:
    augmentation = Augmentation(area=(0.1, 0.6), min_visible=min_visible)
    dropped = 0
    with DetectionLoader(EXACT, files, batch_size=4, train=True, augmentation=augmentation, seed=1) as loader:
        for _ in range(4):
            for index, (_, boxes, classes, located) in collect(loader).items():
                sample = files.samples[index]
                corners = np.array([[0, 0, *reversed(located.canvas_hw)]], np.float32)
                x0, y0, x1, y1 = located.to_source(corners)[0]
                cut = np.clip(sample.boxes, [x0, y0, x0, y0], [x1, y1, x1, y1])
                areas, left = (np.prod(one[:, 2:] - one[:, :2], axis=1) for one in (sample.boxes, cut))
                kept = (left / areas >= min_visible - 1e-4) & (left > 1e-3)
                assert classes == sample.class_ids[kept].tolist()
                # float32, on a canvas of 96 pixels.
                np.testing.assert_allclose(located.to_source(boxes), cut[kept], atol=1e-3)
                dropped += int((~kept).sum())
                assert len(boxes) > 0 or len(sample.boxes) == 0 or min_visible == 0
    assert dropped > 0


@given(st.data(), st.integers(2, 2000), st.integers(2, 2000), st.integers(0, 2**31), st.floats(0.01, 1))
def test_a_drawn_box_keeps_an_object(data: st.DataObject, height: int, width: int, index: int, share: float) -> None:
    """Without any the draw is the classifier's."""
    count = data.draw(st.integers(1, 4))
    corners = [(data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))) for _ in range(count)]
    objects = np.array(
        [(x, y, data.draw(st.integers(x + 1, width)), data.draw(st.integers(y + 1, height))) for x, y in corners],
        np.float32,
    )
    chain = Augmentation(min_visible=share)
    box = chain.draw((height, width), seed=0, epoch=0, index=index, objects=objects).box
    assert visible_share(objects, box.spans).max() >= share
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width
    plain = chain.draw((height, width), seed=0, epoch=0, index=index)
    assert chain.draw((height, width), seed=0, epoch=0, index=index, objects=objects[:0]) == plain


def test_bad_pictures_fail_at_once_or_are_skipped_and_listed(tmp_path: Path) -> None:
    pictures = drawn_set(8)
    files = read(tmp_path, pictures)
    with DetectionLoader(LETTERBOX, files, batch_size=8) as loader:
        whole = collect(loader)
    (tmp_path / "photos" / "002.png").unlink()
    (tmp_path / "boxes.json").write_text((tmp_path / "boxes.json").read_text().replace('"bbox": [', '"bbox": [9000', 1))
    # Another picture than the one that its boxes are given for, and one that is no picture.
    Drawn("", (64, 128), ()).save(tmp_path / "photos" / "004.png")
    (tmp_path / "photos" / "005.png").write_text("no picture")
    files = read_coco(tmp_path / "boxes.json", images=tmp_path / "photos")
    message = r"2 of 8 pictures cannot be used:\n  .*001\.png: boxes\.json.*\n  .*002\.png: there"
    with pytest.raises(BadSample, match=message):
        DetectionLoader(LETTERBOX, files, batch_size=4)
    with DetectionLoader(LETTERBOX, files, batch_size=4, bad_files="skip") as loader:
        for _ in range(2):
            made = collect(loader)
            assert sorted(made) == [0, 3, 6, 7]
            for index, (_, boxes, _, located) in made.items():
                np.testing.assert_array_equal(boxes, whole[index][1])
                assert located == whole[index][3]
        assert [one.index for one in loader.skipped] == [1, 2, 4, 5]
        reasons = [one.reason for one in loader.skipped]
    assert "is outside the picture" in reasons[0]
    assert reasons[1] == "there is no such picture"
    height, width = pictures[4].size_hw
    assert reasons[2].startswith("the picture has 128x64 pixels after its EXIF orientation; ")
    assert reasons[2].endswith(f"its boxes are given for {width}x{height}")
    assert "got text" in reasons[3]
