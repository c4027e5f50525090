"""Masks: they go where their pictures go; what their levels mean, and one line for what is wrong with one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from definitions import in_levels
from hypothesis import event, given
from hypothesis import strategies as st
from image_files import encode, png, png_of
from image_sets import stretched
from loader_kinds import MASKS
from mask_sets import CLASSES, LEVELS, drawn_mask, mapped, save_mask, save_picture, write_set
from PIL import Image

from onestream.preprocess import (
    BadDataset,
    BadSample,
    CannotCompile,
    CenterCrop,
    Definition,
    Letterbox,
    Pad,
    Resize,
    compile,
)
from onestream.preprocess.backends.base import BackendName, Compiled
from onestream.preprocess.training import (
    IGNORE,
    Augmentation,
    SegmentationFiles,
    SegmentationLoader,
    SegmentationSample,
    moved_mask,
    read_masks,
)

LETTERBOX, EXACT = in_levels(Letterbox(size=(96, 112))), stretched(90, 100)
CROP = in_levels(Resize(mode="shorter", size=80), CenterCrop(size=(70, 90)))
# What the crop takes away does not come back where the pad is.
CUT_AND_PADDED = in_levels(CenterCrop(size=(60, 64)), Pad(size=(90, 80), value=9), Resize(mode="exact", size=(72, 96)))
UNTOUCHED = in_levels(CenterCrop(size=(50, 60)))
DEFINITIONS = {"letterbox": LETTERBOX, "exact": EXACT, "crop": CROP, "untouched": UNTOUCHED}
MOVES: list[dict[str, Any]] = [
    {"op": "flip"},
    {"op": "flip", "axis": "vertical"},
    {"op": "rotation", "degrees": [-180, 180]},
    {"op": "affine", "degrees": [-20, 20], "translate": [0.2, 0.2], "scale": [0.6, 1.5], "shear_x": [-20, 20]},
    {"op": "perspective", "distortion": 0.4},
    {"op": "padded_crop", "padding": 20},
    {"op": "box", "area": [0.3, 1.0]},
    {"op": "scale_jitter", "scale": [0.4, 2.0]},
]
WARP: dict[str, Any] = {"op": "warp", "distance": 0.08, "spacing": 0.6}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SegmentationFiles:
    """17 pictures, stored in four orientations."""
    return write_set(tmp_path_factory.mktemp("files"), 17)


@pytest.mark.parametrize("name", [*DEFINITIONS, "cut and padded"])
def test_without_augmentation_masks_follow_the_definition_exactly(files: SegmentationFiles, name: str) -> None:
    definition = DEFINITIONS.get(name, CUT_AND_PADDED)
    backend: BackendName = "dali" if name in DEFINITIONS else "reference"
    served = compile(definition, backend=backend, max_batch_size=4).run([files.read(i) for i in range(len(files))])
    with SegmentationLoader(definition, files, batch_size=5, backend=backend, threads=2) as loader:
        assert loader.classes == CLASSES
        assert {batch.masks.dtype for batch in loader} == {torch.uint8}
        made = MASKS.collect(loader)
    assert sorted(made) == list(range(len(files)))
    for index, (image, mask) in made.items():
        np.testing.assert_array_equal(image, served[index])
        np.testing.assert_array_equal(mask, mapped(np.asarray(Image.open(files.samples[index].mask)), definition))
        # The levels are those of the classes, but for edges, where a filter mixes them.
        assert (np.abs(image[..., 0].astype(int) - LEVELS[mask % 3]) < 3)[mask != IGNORE].mean() > 0.5


@given(st.data())
def test_any_geometry_is_followed_to_the_pixel(data: st.DataObject) -> None:
    # Whole numbers this small have no quotients that floats cannot tell from a whole one.
    sides = st.integers(1, 60)
    resizes = st.builds(
        lambda mode, one, other: Resize(mode=mode, size=(one, other) if mode in ("exact", "fit") else one),
        st.sampled_from(["exact", "fit", "longer"]), sides, sides,
    )  # fmt: skip
    crops = st.builds(lambda one, other: CenterCrop(size=(one, other)), sides, sides)
    # A crop before it, so that it has not to cut.
    pads = st.builds(lambda one, other: [CenterCrop(size=(one, other)), Pad(size=(one + 7, other + 2))], sides, sides)
    steps = data.draw(st.lists(st.one_of(resizes, crops, pads), min_size=1, max_size=3))
    operations = [one for step in steps for one in (step if isinstance(step, list) else [step])]
    definition = in_levels(*operations)
    size_hw = data.draw(sides), data.draw(sides)
    mask = np.random.default_rng(0).integers(0, 250, size_hw).astype(np.uint8)
    np.testing.assert_array_equal(moved_mask(mask, definition, border=IGNORE), mapped(mask, definition))


@cache
def compiled(definition: Definition, backend: BackendName) -> Compiled:
    return compile(definition, backend=backend, varied=True)


def around(mask: np.ndarray, class_id: int) -> np.ndarray:
    """Pixels that are of a class with all of their neighbours."""
    of_class = np.pad(mask == class_id, 1, constant_values=True)
    rows = of_class[:-2] & of_class[1:-1] & of_class[2:]
    return rows[:, :-2] & rows[:, 1:-1] & rows[:, 2:]


@given(st.data())
def test_picture_and_mask_stay_aligned_within_a_pixel_after_the_whole_chain(data: st.DataObject) -> None:
    """A bright disc: where the mask says disc all around, the picture is bright, and dark where it says ground.

    A filter that makes a picture much smaller along one axis blurs its edges, not the middle of the disc.
    """
    definition = data.draw(st.sampled_from([LETTERBOX, EXACT, CROP]))
    height, width = data.draw(st.integers(60, 260)), data.draw(st.integers(60, 260))
    radius = data.draw(st.integers(16, min(height, width) // 2))
    y, x = (data.draw(st.integers(radius, side - radius)) for side in (height, width))
    rows, columns = np.mgrid[:height, :width] + 0.5
    mask = ((rows - y) ** 2 + (columns - x) ** 2 < radius**2).astype(np.uint8)
    picture = np.repeat(np.where(mask, 230, 10).astype(np.uint8)[..., None], 3, axis=2)
    moves = data.draw(st.lists(st.sampled_from(MOVES), min_size=1, max_size=4))
    chain = Augmentation([*moves, *([WARP] if data.draw(st.booleans()) else [])], fill=10)
    index = data.draw(st.integers(0, 2**31))
    variation = chain.draw((height, width), seed=1, epoch=0, index=index, definition=definition)
    backend = data.draw(st.sampled_from(["reference", "dali"]))
    (seen,) = compiled(definition, backend).run([png_of(picture)], [lambda _: variation])
    assert isinstance(seen, np.ndarray)
    moved = moved_mask(mask, definition, variation, border=IGNORE)
    bright = seen[..., 0]
    assert (bright[around(moved, 1)] > 80).all()
    assert (bright[around(moved, 0)] < 160).all()
    assert (bright[around(moved, IGNORE)] < 160).all()
    if (moved == 1).sum() < 50:
        event("little or no disc")
        return
    event("disc")
    middles = [
        [(axis * weights).sum() / weights.sum() for axis in np.mgrid[: moved.shape[0], : moved.shape[1]]]
        for weights in ((moved == 1).astype(float), np.clip(bright.astype(float) - 10, 0, 220))
    ]
    np.testing.assert_allclose(*middles, atol=0.5)


def test_a_loader_moves_masks_with_a_chain(files: SegmentationFiles) -> None:
    with pytest.raises(CannotCompile, match="one resize, before any crop or pad"):
        SegmentationLoader(CUT_AND_PADDED, files, batch_size=5, backend="dali")
    chain = Augmentation([MOVES[6], MOVES[0], {"op": "rotation", "probability": 0.5}, WARP], fill=0)
    compared = 0
    with SegmentationLoader(LETTERBOX, files, batch_size=4, train=True, augmentation=chain, threads=1) as loader:
        for image, mask in MASKS.collect(loader).values():
            for class_id, level in enumerate(LEVELS.tolist()):
                inside = around(mask, class_id)
                off = np.abs(image[..., 0][inside].astype(int) - level)
                # Keys's cubic reaches two pixels far, and a bar is thin.
                assert np.percentile(off, 90, method="higher") < 45 if inside.any() else True
                compared += int(inside.sum())
    assert compared > 17 * 2000


def test_bad_masks_fail_or_are_skipped_and_listed(tmp_path: Path) -> None:
    write_set(tmp_path, 8)
    masks = tmp_path / "masks"
    (masks / "001.png").unlink()
    save_mask(masks / "002.png", drawn_mask((70, 80), 0))
    whole = np.asarray(Image.open(masks / "004.png")).copy()
    whole[3, 5] = 9
    save_mask(masks / "004.png", whole)
    (masks / "005.png").write_bytes((masks / "005.png").read_bytes()[:-30])
    (tmp_path / "photos" / "006.png").write_text("no picture")
    files = read_masks(tmp_path / "photos", masks=masks, classes=CLASSES)
    with pytest.raises(BadSample, match=r"001\.png: there is no mask .*masks/001\.png$"):
        SegmentationLoader(LETTERBOX, files, batch_size=4)
    with SegmentationLoader(LETTERBOX, files, batch_size=4, bad_files="skip", last_batch="pad") as loader:
        batches = list(loader)
        reasons = [one.reason for one in loader.skipped]
        assert [one.index for one in loader.skipped] == [1, 2, 4, 5, 6]
    assert [batch.indices.tolist() for batch in batches] == [[0, -1, -1, 3], [-1, -1, -1, 7]]
    for batch in batches:
        for index, mask in zip(batch.indices.tolist(), batch.masks, strict=True):
            assert bool((mask == IGNORE).all()) == (index < 0)
    assert "masks/002.png: it has 80x70 pixels; its picture has " in reasons[1]
    assert reasons[2].endswith("masks/004.png: got the level 9; allowed: 0, 1, 2, 255")
    assert "masks/005.png: bad image (corrupt)" in reasons[3]
    assert "got text" in reasons[4]


SIZE = (12, 20)
MASK = np.arange(240).reshape(SIZE).astype(np.uint8) % 3


def files_of(tmp_path: Path, mask: bytes, **options: Any) -> SegmentationFiles:
    """One picture with a mask of these bytes."""
    (tmp_path / "mask.png").write_bytes(mask)
    sample = SegmentationSample(tmp_path / "photo.png", tmp_path / "mask.png")
    return SegmentationFiles([sample], **{"classes": CLASSES, **options})


def gray(mask: np.ndarray, **options: Any) -> bytes:
    return png_of(mask[..., None], **options)


def test_levels_of_gray_and_indices_of_a_palette_are_classes_in_the_masks_own_orientation(tmp_path: Path) -> None:
    expected = MASK.copy()
    expected[0, :4] = IGNORE
    palette = Image.frombytes("P", SIZE[::-1], expected.tobytes())
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
    palette.save(tmp_path / "palette.png")
    turned, exif = Image.fromarray(expected).transpose(Image.Transpose.ROTATE_90), Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif.tobytes())
    for encoded in (gray(expected), *((tmp_path / name).read_bytes() for name in ("palette.png", "turned.png"))):
        read = files_of(tmp_path, encoded).mask(0, SIZE)
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, expected)
    # Two bits a pixel: 0, 1, 2, 3 from the left.
    colors = (b"PLTE", bytes(range(12)))
    small = png([bytes([0b00011011])] * 2, 4, bits=2, color=3, before=[colors])
    read = files_of(tmp_path, small, classes=("a", "b", "c", "d")).mask(0, (2, 4))
    assert read.tolist() == [[0, 1, 2, 3]] * 2


def test_levels_may_mean_other_classes(tmp_path: Path) -> None:
    black_and_white = np.where(MASK == 1, 255, 0).astype(np.uint8)
    read = files_of(tmp_path, gray(black_and_white), levels={0: 0, 255: 1}).mask(0, SIZE)
    np.testing.assert_array_equal(read, MASK == 1)
    with pytest.raises(BadDataset, match=r"levels 0 and 255 only, and 255 is ignored; .* levels=\{0: 0, 255: 1\}"):
        files_of(tmp_path, gray(black_and_white))
    raised = MASK * 5 + 7
    read = files_of(tmp_path, gray(raised), levels={7: 2, 12: IGNORE, 17: 0}).mask(0, SIZE)
    np.testing.assert_array_equal(read, np.array([2, IGNORE, 0])[MASK])


def flipped_byte(data: bytes) -> bytes:
    """With one byte of the pixels changed."""
    at = data.index(b"IDAT") + 12
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (gray(MASK + 1), r"got the level 3; allowed: 0, 1, 2, 255"),
        (gray(MASK[:, :18]), r"it has 18x12 pixels; its picture has 20x12 after its EXIF orientation"),
        (gray(MASK.astype(np.uint16)), r"got gray of 16 bit; expected 8-bit gray, or a palette whose indices count"),
        (png([bytes(5)] * 12, 20, bits=2, color=0), r"got gray of 2 bit; expected 8-bit gray"),
        (png_of(np.repeat(MASK[..., None], 3, axis=2)), r"got RGB of 8 bit; expected 8-bit gray"),
        (flipped_byte(gray(MASK)), r"bad image \(corrupt\)"),
        (gray(MASK)[:-20], r"bad image \(corrupt\)"),
        (encode(Image.fromarray(MASK), "JPEG"), r"got JPEG; expected PNG, which keeps every level"),
        (b"no picture", r"got text"),
        (b"", r"bad image"),
        (None, r"mask\.png cannot be read: No such file"),
    ],
)
def test_a_bad_mask_is_one_line(tmp_path: Path, mask: bytes | None, message: str) -> None:
    files = files_of(tmp_path, mask or b"")
    if mask is None:
        (tmp_path / "mask.png").unlink()
    with pytest.raises(BadSample, match=rf"^the mask .*mask\.png: .*{message}") as raised:
        files.mask(0, SIZE)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("layout", ["folders", "beside", "named"])
def test_masks_are_found_by_their_names(tmp_path: Path, layout: str) -> None:
    photos = tmp_path / "photos"
    layouts: dict[str, tuple[str, dict[str, Any]]] = {
        "folders": ("masks/{}.png", {"masks": tmp_path / "masks"}),
        "beside": ("photos/{}.png", {}),
        "named": ("photos/{}_mask.png", {"suffix": "_mask.png"}),
    }
    names, options = layouts[layout]
    for number, name in enumerate(("b/two", "one", "a.b")):
        suffix = ".png" if layout == "named" and number == 1 else ".jpg"
        save_picture(photos / f"{name}{suffix}", drawn_mask((40, 30 + number), number))
        save_mask(tmp_path / names.format(name), drawn_mask((40, 30 + number), number))
    files = read_masks(photos, classes=CLASSES, **options)
    files.refuse_bad()
    assert [sample.path.stem for sample in files.samples] == ["a.b", "two", "one"]
    for index, number in enumerate((2, 0, 1)):
        size = (40, 30 + number)
        np.testing.assert_array_equal(files.mask(index, size), drawn_mask(size, number))
        assert files.name(index) == str(files.samples[index].path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": "none"}, "none is not a folder"),
        ({"masks": "none"}, "none is not a folder"),
        ({"suffix": "g"}, r"no picture in .*; expected files that end in .*, beside masks that end in g"),
        ({"classes": []}, "got 0 classes; expected 1 to 255, since 255 means none"),
        ({"classes": [str(one) for one in range(256)]}, "got 256 classes"),
        ({"levels": {7: 3}}, r"levels has 7: 3; expected a level of 0 to 255, and a class of 0 to 2 or 255 for none"),
        ({"levels": {256: 0}}, "levels has 256: 0"),
    ],
)
def test_what_is_no_set_of_masks_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    save_picture(tmp_path / "photos" / "one.jpg", MASK)
    save_mask(tmp_path / "photos" / "one.png", MASK)
    paths = {name: tmp_path / options[name] for name in ("images", "masks") if name in options}
    with pytest.raises(BadDataset, match=message):
        read_masks(**{"images": tmp_path / "photos", "classes": CLASSES, **options, **paths})
