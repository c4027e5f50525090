"""Mosaic, mixup and cutmix: what is drawn, and that it is a value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision_alone
from image_files import png_of
from image_sets import BOXED, MIXED_CLASSES, SQUARE, Known, stretched
from PIL import Image
from pydantic import ValidationError
from sample_images import photo

from onestream.preprocess import Definition, compile
from onestream.preprocess.changes import Blur, Erase, Invert
from onestream.preprocess.collage import Collage, Layer, Part, blended, cut
from onestream.preprocess.geometry import Window
from onestream.preprocess.training import Augmentation
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
    photo = np.asarray(
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)).resize(
            (240, 180), Image.Resampling.BICUBIC
        )
    )
    definition = stretched(90, 120)
    tilted = Augmentation([{"op": "rotation", "degrees": [10, 30]}], fill=9).draw(
        (180, 240), seed=0, epoch=0, index=1, definition=definition
    )
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
    two = Part(
        sample=7, variation=Variation.of_box(Window(1, 2, 3, 4)).model_copy(update={"canvas_hw": (5, 6)}), top=8, left=9
    )
    alone = Collage(layers=(Layer(parts=(one,)),), changes=(Invert(),))
    assert str(alone) == "box 20x10 at (0, 0); invert"
    pasted = Collage(layers=(Layer(parts=(one, two)),))
    assert str(pasted) == "sample 4: box 20x10 at (0, 0) + sample 7 on 6x5 at (9, 8): box 4x3 at (2, 1)"
    mixed = Collage(layers=(Layer(parts=(one,), share=0.25), Layer(parts=(two,), share=0.75)))
    assert str(mixed).startswith("0.25 of [sample 4: box 20x10 at (0, 0)] + 0.75 of [sample 7")
    assert hash(mixed) == hash(mixed.model_copy())


def test_without_a_sample_the_others_take_its_share() -> None:
    one, two = (Part(sample=n, variation=Variation.of_box(Window(0, 0, 10, 20))) for n in (1, 2))
    mixed = Collage(layers=(Layer(parts=(one,), share=0.25), Layer(parts=(two,), share=0.75)))
    assert mixed.without({1}) == Collage(layers=(Layer(parts=(two,)),))
    assert mixed.without({5}) == mixed
    assert mixed.without({1, 2}).parts == ()
    assert (blended(mixed.without({1, 2}), [], (2, 3, 1)) == 0).all()
    never = Collage(layers=(Layer(parts=(one,), share=0.0), Layer(parts=(two,), share=1.0)))
    assert never.without({2}).layers[0].share == 1


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
    assert drawn.layers == (
        Layer(parts=(Part(sample=0, variation=plain.draw((90, 80), seed=2, epoch=3, index=0, definition=SQUARE)),)),
    )
