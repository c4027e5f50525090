"""Mosaic, mixup and cutmix: what is drawn is a value, and labels and boxes go with it, however they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_alone
from box_sets import CLASSES, Drawn, drawn_set, write_coco
from hypothesis import event, given, settings
from hypothesis import strategies as st
from image_files import png_of
from image_sets import (
    BOXED,
    CROPPED,
    DEFINITION,
    MIXED_CLASSES,
    SQUARE,
    Known,
    only_batch,
    stretched,
    write_photos,
)
from PIL import Image
from pydantic import ValidationError
from sample_images import photo

from onestream.preprocess import BadDataset, BadSample, Decode, Definition, Resize, compile
from onestream.preprocess.changes import Blur, Erase, Invert
from onestream.preprocess.collage import Collage, Layer, Part, blended, cut
from onestream.preprocess.geometry import Window
from onestream.preprocess.training import (
    Augmentation,
    Batch,
    DetectionFiles,
    DetectionLoader,
    ImageLoader,
    InMemory,
    read_coco,
)
from onestream.preprocess.variation import Variation

torchvision_alone.load()
from torchvision.transforms import v2  # noqa: E402


def collages(
    chain: Augmentation, count: int = 1500, pictures: int = 9, definition: Definition = SQUARE
) -> list[Collage]:
    known = Known([(100 + 10 * number, 150) for number in range(pictures)])
    return [chain.collage(known, seed=3, epoch=n, index=n % pictures, definition=definition) for n in range(count)]


def largest_difference(one: list[float], other: list[float]) -> float:
    """Of two distribution functions (Kolmogorov and Smirnov)."""
    places = np.sort([*one, *other])
    first, second = (np.searchsorted(np.sort(values), places, side="right") / len(values) for values in (one, other))
    return float(np.abs(first - second).max())


@pytest.mark.parametrize(("name", "alpha"), [("mixup", 0.3), ("mixup", 1.0), ("cutmix", 1.0), ("cutmix", 0.4)])
def test_shares_have_torchvisions_distribution(name: str, alpha: float) -> None:
    torch.manual_seed(1)
    transform = {"mixup": v2.MixUp, "cutmix": v2.CutMix}[name](alpha=alpha, num_classes=2)
    images, labels = torch.zeros((2, 3, 60, 60)), torch.tensor([0, 1])
    theirs = [float(transform(images, labels)[1][0, 1]) for _ in range(1500)]
    ours = []
    for collage in collages(Augmentation([{"op": name, "alpha": alpha}])):
        shares = collage.shares((60, 60))
        ours.append(shares[1] if len(shares) > 1 else 0.0)
    # Two samples of 1500 from one distribution differ by more than 0.071 once in a thousand times.
    assert largest_difference(ours, theirs) < 0.071


def test_others_are_drawn_uniformly_from_the_dataset_and_never_the_sample_itself() -> None:
    chain = Augmentation([{"op": "mixup"}])
    drawn = [[part.sample for part in collage.parts] for collage in collages(chain, 4000)]
    assert all(own == number % 9 != other for number, (own, other) in enumerate(drawn))
    counts = np.bincount([other for _, other in drawn], minlength=9)
    # 444 of 4000 each, give or take four standard deviations of 20.
    assert np.abs(counts - 4000 / 9).max() < 80
    (alone,) = collages(chain, 1, pictures=1)
    assert [part.sample for part in alone.parts] == [0, 0]


def test_of_mixup_and_cutmix_the_first_that_happens_is_the_only_one() -> None:
    drawn = collages(Augmentation([{"op": "cutmix", "probability": 0.5}, {"op": "mixup", "probability": 0.5}]), 2000)
    mixed = sum(len(collage.layers) == 2 for collage in drawn)
    cut_in = sum(len(collage.layers[0].parts) == 2 for collage in drawn)
    assert not any(len(collage.parts) > 2 for collage in drawn)
    # A quarter and a half, give or take four standard deviations; of cutmix some rectangles are smaller than a pixel.
    assert abs(mixed - 500) < 78
    assert 860 < cut_in < 1090


def test_a_mosaic_meets_where_it_says_and_parts_do_not_overlap() -> None:
    chain = Augmentation([{"op": "mosaic", "middle": [0.3, 0.6], "scale": [0.5, 1.5]}])
    scales = []
    for collage in collages(chain, 400, definition=BOXED):
        (layer,) = collage.layers
        assert len(layer.parts) == 4
        covered = np.zeros((96, 128), int)
        for part in layer.parts:
            height, width = part.variation.canvas_hw or (0, 0)
            covered[part.top : part.top + height, part.left : part.left + width] += 1
        assert covered.max() == 1
        right, bottom = layer.parts[0].variation.canvas_hw[::-1]  # type: ignore[index]
        x, y = layer.parts[0].left + right, layer.parts[0].top + bottom
        assert (layer.parts[3].left, layer.parts[3].top) == (x, y)
        assert 0.3 * 128 - 1 <= x <= 0.6 * 128 + 1
        assert 0.3 * 96 - 1 <= y <= 0.6 * 96 + 1
        for part in layer.parts:
            # Upright pictures are cut in whole pixels, so that the definition's filter resizes them.
            box = part.variation.box_in((100 + 10 * part.sample, 150))
            assert box is not None
            fitted = min(96 / (100 + 10 * part.sample), 128 / 150)
            scales.append((part.variation.canvas_hw[1] / box.width) / fitted)  # type: ignore[index]
    # A part that is a few pixels wide is rounded to whole ones of the picture.
    low, middle, high = np.percentile(scales, [2, 50, 98])
    assert 0.45 < low < 0.6
    assert 0.9 < middle < 1.1
    assert 1.4 < high < 1.6


def test_what_a_window_shows_of_a_canvas_is_that_part_of_it() -> None:
    """A cut is checked against the whole canvas: the same pixels, but for the filter at the edges of the cut."""
    blocks = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8))
    photo = np.asarray(blocks.resize((240, 180), Image.Resampling.BICUBIC))
    definition = stretched(90, 120)
    turns = Augmentation([{"op": "rotation", "degrees": [10, 30]}], fill=9)
    tilted = turns.draw((180, 240), seed=0, epoch=0, index=1, definition=definition)
    upright = Variation.of_box(
        Window(20, 40, 120, 160), flip=True, changes=(Erase(top=30, left=20, height=30, width=40, fill=99), Invert())
    )
    for variation in (tilted, upright):
        whole = varied(definition, variation, photo)
        for window in (Window(0, 0, 40, 50), Window(35, 31, 44, 80), Window(89, 0, 1, 120)):
            seen = varied(definition, cut(variation, (90, 120), (180, 240), window), photo)
            expected = whole[window.top : window.top + window.height, window.left : window.left + window.width]
            assert seen.shape == expected.shape
            difference = np.abs(np.subtract(seen, expected, dtype=np.int16))
            # The edges of a box are moved to whole pixels of the picture, by up to half a pixel of 1.33.
            assert difference.mean() < 4, window
    assert cut(upright, (90, 120), (180, 240), Window(0, 0, 20, 120)).changes == (Invert(),)


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_a_blur_goes_with_the_size_of_its_picture(scale: float) -> None:
    """A cut is checked against the whole canvas, blurred and then brought to the size that the picture has."""
    image = photo("coffee")
    size_hw = image.height, image.width
    definition = stretched(90, 120)
    variation = Variation.of_box(Window(0, 0, *size_hw), changes=(Blur(sigma=4),))
    whole = Image.fromarray(varied(definition, variation, np.asarray(image)))
    expected = np.asarray(whole.resize((int(120 * scale), int(90 * scale)), Image.Resampling.BICUBIC))
    window = Window(0, 0, int(60 * scale), int(80 * scale))
    seen = varied(definition, cut(variation, (90, 120), size_hw, window, scale=scale), np.asarray(image))
    # Where the cut's own border, which is repeated, reaches no more: five standard deviations from it.
    rows, columns = int(40 * scale), int(60 * scale)
    difference = np.abs(np.subtract(seen[:rows, :columns], expected[:rows, :columns], dtype=np.int16))
    assert difference.mean() < 1.5


def varied(definition: Definition, variation: Variation, pixels: np.ndarray) -> np.ndarray:
    seen: list[np.ndarray] = []
    for backend in ("reference", "dali"):
        (made,) = compile(definition, backend=backend, varied=True).run([png_of(pixels)], [lambda _: variation])  # type: ignore[arg-type]
        assert isinstance(made, np.ndarray)
        seen.append(made)
    np.testing.assert_array_equal(*seen)
    return seen[0]


def test_a_collage_is_shown_compared_and_written_as_json() -> None:
    (first, *_) = collages(MIXED_CLASSES, 1)
    assert Collage.model_validate_json(first.model_dump_json()) == first
    one = Part(sample=4, variation=Variation.of_box(Window(0, 0, 10, 20)))
    on_canvas = Variation.of_box(Window(1, 2, 3, 4)).model_copy(update={"canvas_hw": (5, 6)})
    two = Part(sample=7, variation=on_canvas, top=8, left=9)
    alone = Collage(layers=(Layer(parts=(one,)),), changes=(Invert(),))
    assert str(alone) == "box 20x10 at (0, 0); invert"
    pasted = Collage(layers=(Layer(parts=(one, two)),))
    assert str(pasted) == "sample 4: box 20x10 at (0, 0) + sample 7 on 6x5 at (9, 8): box 4x3 at (2, 1)"
    mixed = Collage(layers=(Layer(parts=(one,), share=0.25), Layer(parts=(two,), share=0.75)))
    assert str(mixed).startswith("0.25 of [sample 4: box 20x10 at (0, 0)] + 0.75 of [sample 7")
    assert hash(mixed) == hash(mixed.model_copy())
    # Without a sample the others take its share.
    assert mixed.without({4}) == Collage(layers=(Layer(parts=(two,)),))
    assert mixed.without({5}) == mixed
    assert mixed.without({4, 7}).parts == ()
    assert (blended(mixed.without({4, 7}), [], (2, 3, 1)) == 0).all()
    never = Collage(layers=(Layer(parts=(one,), share=0.0), Layer(parts=(two,), share=1.0)))
    assert never.without({7}).layers[0].share == 1


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        (["mosaic", "rotation"], "rotation moves pixels, so it must come before mosaic"),
        (["mixup", "trivial_augment"], "trivial_augment moves pixels"),
        (["mosaic", "invert", "mixup"], "invert comes between mosaic and mixup"),
        (["mixup", "mosaic"], "mosaic comes first, once"),
        (["mosaic", "mosaic"], "mosaic comes first, once"),
        (["mosaic", "cutmix"], "goes with mixup only"),
        (["warp", "cutmix"], "warp comes once, without mosaic and cutmix"),
    ],
)
def test_an_order_that_cannot_be_is_refused(operations: list[str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Augmentation([{"op": name} for name in operations])


def test_a_chain_that_mixes_draws_collages_only() -> None:
    with pytest.raises(ValueError, match="draws a collage"):
        MIXED_CLASSES.draw((10, 10), seed=0, epoch=0, index=0)
    plain = Augmentation([{"op": "box"}, {"op": "flip"}])
    drawn = plain.collage(Known([(90, 80)]), seed=2, epoch=3, index=0, definition=SQUARE)
    variation = plain.draw((90, 80), seed=2, epoch=3, index=0, definition=SQUARE)
    assert drawn.layers == (Layer(parts=(Part(sample=0, variation=variation),)),)


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


def test_labels_are_needed_and_counted(photos: Path) -> None:
    file = next(photos.rglob("*.jpg")).read_bytes()
    options: dict[str, Any] = {"batch_size": 2, "train": True, "augmentation": Augmentation([{"op": "mixup"}])}
    with pytest.raises(BadDataset, match="item 1 has the label -1; samples are mixed with labels of 0 to 4"):
        ImageLoader(DEFINITION, [(file, 4), file], **options)
    batch = only_batch(ImageLoader(DEFINITION, [(file, 4), (file, 0)], **options))
    assert batch.labels.shape == (2, 5)

    class Own(InMemory):
        def label(self, index: int) -> Any:
            return float(index)

    batch = only_batch(ImageLoader(DEFINITION, Own([file, file]), **options))
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
    chain = Augmentation([{"op": "mixup"}])
    options: dict[str, Any] = {"batch_size": 5, "train": True, "shuffle": False, "augmentation": chain}
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
    definition = data.draw(st.sampled_from([SQUARE, CROPPED.pixels()]))
    options: dict[str, Any] = {"train": True, "augmentation": chain, "backend": backend, "threads": 1}
    with DetectionLoader(definition, marked, batch_size=5, **options) as loader:
        for batch in loader:
            for image, boxes in zip(batch.images.numpy(), batch.boxes, strict=True):
                bright = image.max(axis=2) > 140
                inside = np.zeros(bright.shape, bool)
                for x0, y0, x1, y1 in boxes.numpy():
                    rows, columns = (slice(max(0, int(a - 1)), int(np.ceil(b + 1))) for a, b in ((y0, y1), (x0, x1)))
                    inside[rows, columns] = True
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
        batch = only_batch(DetectionLoader(CROPPED, files, batch_size=17, train=True, augmentation=chain, threads=1))
        assert [len(one) for one in batch.boxes] == [len(one) for one in batch.class_ids]
        assert batch.mappings == []
        assert {one.dtype for one in batch.class_ids} == {torch.int64}
        assert set(torch.cat(batch.class_ids).tolist()) <= set(range(len(CLASSES)))
        counts[min_visible] = sum(len(one) for one in batch.boxes)
    # 25 objects in 17 pictures: four pictures a mosaic show more than one picture does.
    assert counts[0.0] > 25
    assert 0 < counts[0.6] < counts[0.0]
