"""Loaders whose samples are made of several pictures: labels and boxes go with them, however they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from box_sets import CLASSES, Drawn, drawn_set, write_coco
from hypothesis import event, given, settings
from hypothesis import strategies as st
from image_sets import BOXED, CROPPED, DEFINITION, MIXED_CLASSES, SQUARE, Known, stretched, write_photos

from onestream.preprocess import BadDataset, BadSample, Decode, Definition, Resize
from onestream.preprocess.training import (
    Augmentation,
    Batch,
    DetectionFiles,
    DetectionLoader,
    ImageLoader,
    InMemory,
    read_coco,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DetectionFiles:
    """17 pictures with 0 to 3 objects each, stored in four orientations."""
    folder = tmp_path_factory.mktemp("files")
    return read_coco(write_coco(folder, drawn_set(17)), images=folder / "photos")


def served_and_mixed(definition: Definition, photos: Path, chain: Augmentation) -> tuple[Batch, Batch]:
    """The twelve photos as they are and as a chain mixes them."""
    with ImageLoader(definition, photos, batch_size=12) as loader:
        served = next(iter(loader))
    with ImageLoader(definition, photos, batch_size=12, train=True, shuffle=False, augmentation=chain) as loader:
        return served, next(iter(loader))


def test_mixup_is_the_sum_of_what_serving_sees_of_both(photos: Path) -> None:
    """As torchvision mixes, but before the normalization, in whole levels: half a level of 255 at most."""
    definition = Definition(operations=[Decode(), Resize(mode="exact", size=(64, 56)), DEFINITION.normalize])
    chain = Augmentation([{"op": "mixup"}])
    served, mixed = served_and_mixed(definition, photos, chain)
    known = Known([(64, 64)] * 12)
    assert mixed.labels.shape == (12, 3)
    assert mixed.labels.dtype == torch.float32
    for index in range(12):
        one, other = chain.collage(known, seed=0, epoch=0, index=index, definition=definition).layers
        partner = other.parts[0].sample
        expected = one.share * served.images[index] + other.share * served.images[partner]
        torch.testing.assert_close(mixed.images[index], expected, atol=0.51 / 255 / 0.224, rtol=0)
        labels = torch.zeros(3)
        labels[served.labels[index]] += one.share
        labels[served.labels[partner]] += other.share
        torch.testing.assert_close(mixed.labels[index], labels)


def test_cutmix_pastes_a_rectangle_and_counts_its_area(photos: Path) -> None:
    served, mixed = served_and_mixed(stretched(64, 56), photos, Augmentation([{"op": "cutmix"}]))
    np.testing.assert_allclose(mixed.labels.sum(dim=1), 1, rtol=1e-6)
    pasted = 0
    for index in range(12):
        changed = (mixed.images[index] != served.images[index]).numpy().any(axis=2)
        rows, columns = changed.any(axis=1).nonzero()[0], changed.any(axis=0).nonzero()[0]
        if len(rows):
            area = (rows[-1] + 1 - rows[0]) * (columns[-1] + 1 - columns[0]) / (64 * 56)
            own = float(mixed.labels[index, served.labels[index]])
            # Where both pictures are of one class, all of the label is its.
            assert own == pytest.approx(1) or own == pytest.approx(1 - area, abs=0.06)
            pasted += 1
    assert pasted > 7


def test_padding_has_no_soft_label(photos: Path) -> None:
    with ImageLoader(
        DEFINITION, photos, batch_size=9, train=True, augmentation=MIXED_CLASSES, last_batch="pad"
    ) as loader:
        _, last = loader
    assert last.indices.tolist()[3:] == [-1] * 6
    np.testing.assert_allclose(last.labels.sum(dim=1), [1] * 3 + [0] * 6, rtol=1e-6)


def test_labels_are_needed_and_counted(photos: Path) -> None:
    file = next(photos.rglob("*.jpg")).read_bytes()
    options: dict[str, Any] = {"batch_size": 2, "train": True, "augmentation": Augmentation([{"op": "mixup"}])}
    with pytest.raises(BadDataset, match="item 1 has the label -1; samples are mixed with labels of 0 to 4"):
        ImageLoader(DEFINITION, [(file, 4), file], **options)
    with ImageLoader(DEFINITION, [(file, 4), (file, 0)], **options) as loader:
        (batch,) = loader
    assert batch.labels.shape == (2, 5)

    class Own(InMemory):
        def label(self, index: int) -> Any:
            return float(index)

    with ImageLoader(DEFINITION, Own([file, file]), **options) as loader:
        (batch,) = loader
    assert batch.labels.shape == (2, 2)


def test_a_picture_that_cannot_be_used_is_left_out_of_the_others(tmp_path: Path) -> None:
    """One is no image, and of one the data ends: what is not read from a header shows only when it is decoded."""
    write_photos(tmp_path, count=5)
    paths = sorted(tmp_path.rglob("*.*"))
    whole = {index: path.read_bytes() for index, path in enumerate(paths)}
    jpeg = next(index for index, path in enumerate(paths) if path.suffix == ".jpg")
    text = (jpeg + 1) % 5
    paths[jpeg].write_bytes(whole[jpeg][:-400])
    paths[text].write_text("no image")
    options: dict[str, Any] = {
        "batch_size": 5, "train": True, "shuffle": False,
        "augmentation": Augmentation([{"op": "mixup"}]),
    }  # fmt: skip
    with ImageLoader(DEFINITION, tmp_path, **options) as loader, pytest.raises(BadSample, match="bad image"):
        list(loader)
    with ImageLoader(DEFINITION, tmp_path, bad_files="skip", **options) as loader:
        seen = 0
        for _ in range(4):
            (batch,) = loader
            assert batch.indices.tolist() == [index for index in range(5) if index not in (jpeg, text)]
            np.testing.assert_allclose(batch.labels.sum(dim=1), 1, rtol=1e-6)
            seen += int((batch.labels == 1).any(dim=1).sum())
        assert sorted(one.index for one in loader.skipped) == sorted((jpeg, text))
    # A sample whose partner is bad is itself alone: half of the others are.
    assert 0 < seen < 12


@settings(max_examples=10)
@given(data=st.data())
def test_boxes_enclose_what_was_marked_in_every_part(tmp_path_factory: Any, data: st.DataObject) -> None:
    check_marked_patterns(tmp_path_factory.mktemp("marked"), "dali", data)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dali", "reference"])
@given(data=st.data())
def test_boxes_enclose_what_was_marked_in_any_mosaic(tmp_path_factory: Any, backend: Any, data: st.DataObject) -> None:
    check_marked_patterns(tmp_path_factory.mktemp("marked"), backend, data)


def check_marked_patterns(folder: Path, backend: Any, data: st.DataObject) -> None:
    """Each picture has one bright pattern; no bright pixel of a mosaic is more than a pixel outside all boxes."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    pictures = []
    for number in range(5):
        height, width = (int(side) for side in random.integers(90, 260, 2))
        x0, y0 = int(random.integers(0, width - 40)), int(random.integers(0, height - 40))
        box = (x0, y0, int(random.integers(x0 + 30, width + 1)), int(random.integers(y0 + 30, height + 1)))
        pictures.append(Drawn(f"{number:03}.png", (height, width), ((0, tuple(map(float, box))),), 1))  # type: ignore[arg-type]
    marked = read_coco(write_coco(folder, pictures), images=folder / "photos")
    moves: list[dict[str, Any]] = [
        {"op": "box", "area": [0.4, 1.0]},
        {"op": "flip"},
        {"op": "rotation", "degrees": [-40, 40]},
        {"op": "perspective", "distortion": 0.3},
        {"op": "scale_jitter", "scale": [0.6, 1.6]},
    ]
    chosen = data.draw(st.lists(st.sampled_from(moves), max_size=3))
    chain = Augmentation([*chosen, {"op": "mosaic"}], min_visible=0, fill=0)
    definition = data.draw(
        st.sampled_from([SQUARE, BOXED.model_copy(update={"operations": CROPPED.pixels().operations})])
    )
    with DetectionLoader(
        definition, marked, batch_size=5, train=True, augmentation=chain, backend=backend, threads=1
    ) as loader:
        for batch in loader:
            for image, boxes in zip(batch.images.numpy(), batch.boxes, strict=True):
                bright = image.max(axis=2) > 140
                inside = np.zeros(bright.shape, bool)
                for x0, y0, x1, y1 in boxes.numpy():
                    inside[max(0, int(y0 - 1)) : int(np.ceil(y1 + 1)), max(0, int(x0 - 1)) : int(np.ceil(x1 + 1))] = (
                        True
                    )
                    event("a box")
                assert not (bright & ~inside).any()
                for x0, y0, x1, y1 in boxes.numpy():
                    assert 0 <= x0 < x1 <= image.shape[1]
                    assert 0 <= y0 < y1 <= image.shape[0]
                    if min(x1 - x0, y1 - y0) > 6 and not chosen:
                        # Upright: the box is filled, but for the pixel that its edges cut.
                        assert bright[int(y0) + 1 : int(y1) - 1, int(x0) + 1 : int(x1) - 1].all()


def test_boxes_of_all_parts_come_with_their_classes_and_little_that_is_seen_is_dropped(files: DetectionFiles) -> None:
    counts = {}
    for min_visible in (0.0, 0.6):
        chain = Augmentation([{"op": "mosaic"}], min_visible=min_visible)
        with DetectionLoader(CROPPED, files, batch_size=17, train=True, augmentation=chain, threads=1) as loader:
            (batch,) = loader
        assert [len(one) for one in batch.boxes] == [len(one) for one in batch.class_ids]
        assert batch.mappings == []
        assert {one.dtype for one in batch.class_ids} == {torch.int64}
        assert set(torch.cat(batch.class_ids).tolist()) <= set(range(len(CLASSES)))
        counts[min_visible] = sum(len(one) for one in batch.boxes)
    # 25 objects in 17 pictures: four pictures a mosaic show more than one picture does.
    assert counts[0.0] > 25
    assert 0 < counts[0.6] < counts[0.0]
