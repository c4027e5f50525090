"""Files of masks: what their levels mean, where they lie, and one line for what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import png, png_of
from mask_sets import CLASSES, drawn_mask, save_mask, save_picture
from PIL import Image

from onestream.preprocess import BadDataset, BadSample
from onestream.preprocess.training import IGNORE, SegmentationFiles, SegmentationSample, read_masks

SIZE = (12, 20)
MASK = np.arange(240).reshape(SIZE).astype(np.uint8) % 3


def files_of(tmp_path: Path, mask: bytes, **options: Any) -> SegmentationFiles:
    """One picture with a mask of these bytes."""
    (tmp_path / "mask.png").write_bytes(mask)
    sample = SegmentationSample(tmp_path / "photo.png", tmp_path / "mask.png")
    return SegmentationFiles([sample], **{"classes": CLASSES, **options})


def gray(mask: np.ndarray, **options: Any) -> bytes:
    return png_of(mask[..., None], **options)


def test_levels_of_gray_and_indices_of_a_palette_are_classes(tmp_path: Path) -> None:
    expected = MASK.copy()
    expected[0, :4] = IGNORE
    palette = Image.frombytes("P", SIZE[::-1], expected.tobytes())
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
    palette.save(tmp_path / "palette.png")
    for encoded in (gray(expected), (tmp_path / "palette.png").read_bytes()):
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


def test_an_orientation_of_the_masks_own_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(MASK).transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif.tobytes())
    read = files_of(tmp_path, (tmp_path / "turned.png").read_bytes()).mask(0, SIZE)
    np.testing.assert_array_equal(read, MASK)


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
        (b"no picture", r"got text"),
        (b"", r"bad image"),
    ],
)
def test_a_bad_mask_is_one_line(tmp_path: Path, mask: bytes, message: str) -> None:
    files = files_of(tmp_path, mask)
    with pytest.raises(BadSample, match=rf"^the mask .*mask\.png: .*{message}") as raised:
        files.mask(0, SIZE)
    assert "\n" not in str(raised.value)


def test_a_jpeg_keeps_no_levels_and_a_missing_file_none(tmp_path: Path) -> None:
    Image.fromarray(MASK).save(tmp_path / "mask.jpg")
    with pytest.raises(BadSample, match=r"got JPEG; expected PNG, which keeps every level"):
        files_of(tmp_path, (tmp_path / "mask.jpg").read_bytes()).mask(0, SIZE)
    files = files_of(tmp_path, gray(MASK))
    (tmp_path / "mask.png").unlink()
    with pytest.raises(BadSample, match=r"mask\.png: mask\.png cannot be read: No such file"):
        files.mask(0, SIZE)


@pytest.mark.parametrize("layout", ["folders", "beside", "named"])
def test_masks_are_found_by_their_names(tmp_path: Path, layout: str) -> None:
    photos = tmp_path / "photos"
    names = {"folders": "masks/{}.png", "beside": "photos/{}.png", "named": "photos/{}_mask.png"}[layout]
    options: dict[str, Any] = {
        "folders": {"masks": tmp_path / "masks"}, "beside": {}, "named": {"suffix": "_mask.png"},
    }[layout]  # fmt: skip
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
