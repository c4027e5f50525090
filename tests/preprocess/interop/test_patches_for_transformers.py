"""The drop-in image processors: what transformers' own give for the same call, in every bit."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encode, jpeg_exif, jpeg_with_segments
from lazily import Lazily
from PIL import Image
from sample_images import photo

from onestream.preprocess import CannotImport

torch, transformers = Lazily("torch"), Lazily("transformers")
own = Lazily("onestream.preprocess.patches.for_transformers")
TILE = 14
SQUARE = {"height": TILE, "width": TILE}
POINTS = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]
AREA: dict[str, Any] = {"size": {"shortest_edge": 784, "longest_edge": 40_000}}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2VL": {"size": {"shortest_edge": 3136, "longest_edge": 100_352}},
    "Glm4v": AREA,
    "Glm46V": AREA,
    "PaddleOCRVL": AREA,
    "Pixtral": {"size": {"longest_edge": 112}},
    "Siglip2": {"max_num_patches": 20},
    "LlavaNext": {"size": {"shortest_edge": TILE}, "crop_size": SQUARE, "image_grid_pinpoints": POINTS},
    "LlavaOnevision": {"size": SQUARE, "image_grid_pinpoints": [[TILE, TILE], *POINTS]},
    "GotOcr2": {"size": SQUARE, "crop_to_patches": True},
    "Idefics3": {"size": {"longest_edge": 4 * TILE}, "max_image_size": {"longest_edge": TILE}},
    "SmolVLM": {"size": {"longest_edge": 3 * TILE}, "max_image_size": {"longest_edge": TILE}},
}
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "Qwen2VL": [
        {"size": {"shortest_edge": 1, "longest_edge": 50_000}},
        {"patch_size": 16, "merge_size": 1, "temporal_patch_size": 3},
        {"resample": 2, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
    ],
    **{family: [{"patch_size": 8}] for family in ("Glm4v", "Glm46V", "PaddleOCRVL", "Pixtral", "Siglip2")},
    "GotOcr2": [{"crop_to_patches": False}, {"min_patches": 2, "max_patches": 5}, {"max_patches": 1}],
    "Idefics3": [{"return_row_col_info": True}, {"do_image_splitting": False}, {"do_resize": False}],
}
"""Of single calls, beside the mean."""
NAMES = [f"{family}ImageProcessor{backend}" for family in FAMILIES for backend in ("", "Pil")]
QWEN = NAMES[:2]
WIDE, NARROW, SMALL = (photo("coffee").resize(size) for size in ((90, 40), (20, 70), (12, 12)))
COFFEE = photo("coffee").resize((200, 150))


def both(name: str) -> tuple[Any, Any]:
    options = FAMILIES[name.partition("Image")[0]]
    return getattr(own, name)(**options), getattr(transformers, name)(**options)


def assert_same(seen: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert isinstance(seen, tuple)
        np.testing.assert_array_equal(np.asarray(seen), np.asarray(expected))
        return
    assert type(seen) is type(expected)
    if isinstance(expected, Mapping):
        assert list(seen) == list(expected)
        for key, values in expected.items():
            assert_same(seen[key], values)
    elif isinstance(expected, list):
        for one, other in zip(seen, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, int):
        assert seen == expected
    else:
        assert (seen.dtype, tuple(seen.shape)) == (expected.dtype, tuple(expected.shape))
        np.testing.assert_array_equal(np.asarray(seen), np.asarray(expected))


@pytest.mark.parametrize("name", NAMES)
def test_calls(name: str) -> None:
    made, theirs = both(name)
    for images in (WIDE, [WIDE, NARROW, SMALL], [[SMALL], [NARROW]], np.asarray(WIDE)):
        for tensors in (None, "pt"):
            assert_same(made(images, return_tensors=tensors), theirs(images, return_tensors=tensors))
    family = name.partition("Image")[0]
    images = [[WIDE, SMALL], [NARROW]] if family == "Idefics3" else [WIDE, SMALL]
    for options in ({"resample": 2, "image_mean": [0.5, 0.4, 0.3]}, *ARGUMENTS.get(family, [])):
        assert_same(made(images, return_tensors="pt", **options), theirs(images, return_tensors="pt", **options))
    files = [encode(WIDE, "PNG"), encode(NARROW, "PNG")]
    given = [(files, [WIDE, NARROW]), (files[0], WIDE)]
    if family == "Idefics3":
        given.append(([[file] for file in files], [[WIDE], [NARROW]]))
    for encoded, pictures in given:
        assert_same(made(encoded, return_tensors="pt"), theirs(pictures, return_tensors="pt"))


@pytest.mark.usefixtures("registered")
def test_configs_are_read_by_both_and_auto_classes_find_them(tmp_path: Path) -> None:
    for name in NAMES:
        made, theirs = both(name)
        assert made.to_dict() == theirs.to_dict()
        made.save_pretrained(tmp_path)
        assert getattr(transformers, name).from_pretrained(tmp_path).to_dict() == theirs.to_dict()
        backend = "pil" if name.endswith("Pil") else "torchvision"
        found = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
        assert type(found) is getattr(own, name)
        if name in QWEN:
            assert found.get_number_of_image_patches(150, 200) == len(found(COFFEE)["pixel_values"])


def with_alpha() -> Image.Image:
    image = COFFEE.convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


@pytest.mark.parametrize("name", QWEN)
def test_pictures_of_every_kind(name: str) -> None:
    made, theirs = both(name)
    planes = np.asarray(COFFEE).transpose(2, 0, 1)
    gray = COFFEE.convert("L")
    several = [COFFEE, np.asarray(photo("rocket").resize((90, 120))), COFFEE]
    for picture in (gray, COFFEE.quantize(20), with_alpha(), planes, np.asarray(gray)[:, :, None], several):
        assert_same(made(picture, return_tensors="pt"), theirs(picture, return_tensors="pt"))
    tensor = torch.from_numpy(planes.copy())
    for options in ({}, {"input_data_format": "channels_first"}):
        assert_same(made(tensor, **options), theirs(tensor, **options))
    # Files are what transformers loads of them.
    file = encode(COFFEE, "JPEG")
    files = [file, jpeg_with_segments(file, jpeg_exif(6)), encode(with_alpha(), "PNG")]
    loaded = [transformers.image_utils.load_image(Image.open(io.BytesIO(one))) for one in files]
    assert_same(made(files, return_tensors="pt"), theirs(loaded, return_tensors="pt"))


@pytest.mark.parametrize("name", QWEN)
def test_other_types_of_patches(name: str) -> None:
    made, theirs = both(name)
    expected = torch.from_numpy(np.asarray(theirs(COFFEE, return_tensors="pt")["pixel_values"]))
    made.patch_dtype, made.threads = "bfloat16", 2
    assert torch.equal(made(COFFEE, return_tensors="pt")["pixel_values"], expected.to(torch.bfloat16))
    made.patch_dtype = "uint8"
    levels = made(COFFEE, return_tensors="pt")["pixel_values"].reshape(len(expected), 3, -1)
    mean, std = (torch.tensor(values)[:, None] for values in (theirs.image_mean, theirs.image_std))
    normalized = (levels / 255 - mean) / std
    torch.testing.assert_close(normalized.reshape(expected.shape), expected, rtol=0, atol=1e-5)


def test_what_is_refused() -> None:
    made, theirs = both(QWEN[0])
    for processor in (made, theirs):
        with pytest.raises(ValueError, match=r"^absolute aspect ratio must be smaller than 200, got 225\.0$"):
            processor(Image.new("RGB", (900, 4)))
    with pytest.raises(ValueError, match=r"^images\[1\]: .*JPEG is cut short"):
        made([COFFEE, encode(COFFEE, "JPEG")[:900]])
    with pytest.raises(ValueError, match="picture of float32 with 3 channels, expected uint8 and RGB"):
        made(np.zeros((50, 60, 3), np.float32))
    with pytest.raises(ValueError, match="picture of uint8 with 1 channels"):
        made(COFFEE.convert("L"), do_convert_rgb=False)
    with pytest.raises(ValueError, match="got 2 pictures of one conversation, which LLaVA-OneVision leaves whole"):
        both("LlavaOnevisionImageProcessor")[0]([[WIDE, SMALL], [WIDE]])
    for name in ("LlavaNextImageProcessor", "SmolVLMImageProcessorPil"):
        with pytest.raises(CannotImport, match="do_pad must be true"):
            both(name)[0](WIDE, do_pad=False)
