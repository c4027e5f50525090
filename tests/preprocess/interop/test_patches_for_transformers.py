"""The drop-in image processors: what transformers' own give for the same call, in every bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encode, jpeg_exif, jpeg_with_segments
from lazily import Lazily
from PIL import Image
from sample_images import photo

torch, transformers = Lazily("torch"), Lazily("transformers")
own = Lazily("onestream.preprocess.patches.for_transformers")
NAMES = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil")
FEW: dict[str, Any] = {"size": {"shortest_edge": 3136, "longest_edge": 100_352}}
COFFEE = photo("coffee").resize((200, 150))


def both(name: str, **options: Any) -> tuple[Any, Any]:
    return getattr(own, name)(**{**FEW, **options}), getattr(transformers, name)(**{**FEW, **options})


def assert_equal(seen: Any, expected: Any) -> None:
    assert type(seen) is type(expected)
    assert list(seen) == list(expected) == ["pixel_values", "image_grid_thw"]
    for name in expected:
        assert type(seen[name]) is type(expected[name])
        assert seen[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(np.asarray(seen[name]), np.asarray(expected[name]))


def with_alpha() -> Image.Image:
    image = COFFEE.convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


PICTURES: dict[str, Any] = {
    "RGB": COFFEE,
    "gray": COFFEE.convert("L"),
    "palette": COFFEE.quantize(20),
    "alpha": with_alpha(),
    "array": np.asarray(COFFEE),
    "array of planes": np.asarray(COFFEE).transpose(2, 0, 1),
    "gray array": np.asarray(COFFEE.convert("L"))[:, :, None],
    "several": [COFFEE, np.asarray(photo("rocket").resize((90, 120))), COFFEE],
    "nested": [[COFFEE], [photo("rocket").resize((90, 120))]],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("picture", PICTURES)
def test_pictures(name: str, picture: str) -> None:
    made, theirs = both(name)
    assert_equal(made(PICTURES[picture], return_tensors="pt"), theirs(PICTURES[picture], return_tensors="pt"))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_and_arguments_of_a_call(name: str) -> None:
    made, theirs = both(name)
    tensor = torch.from_numpy(np.asarray(COFFEE).transpose(2, 0, 1).copy())
    for options in (
        {},
        {"return_tensors": "np"} if name.endswith("Pil") else {"return_tensors": "pt"},
        {"size": {"shortest_edge": 1, "longest_edge": 50_000}},
        {"patch_size": 16, "merge_size": 1, "temporal_patch_size": 3},
        {"resample": 2, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
        {"input_data_format": "channels_first"},
    ):
        assert_equal(made(images=tensor, **options), theirs(images=tensor, **options))


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_what_transformers_loads_of_them(name: str) -> None:
    made, theirs = both(name)
    files = [
        encode(COFFEE, "JPEG"),
        jpeg_with_segments(encode(COFFEE, "JPEG"), jpeg_exif(6)),
        encode(with_alpha(), "PNG"),
    ]
    load_image = transformers.image_utils.load_image
    expected = theirs([load_image(Image.open(io.BytesIO(file))) for file in files], return_tensors="pt")
    assert_equal(made(files, return_tensors="pt"), expected)
    assert_equal(made(files[0], return_tensors="pt"), made([files[0]], return_tensors="pt"))


@pytest.mark.parametrize("name", NAMES)
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


def test_configs_are_read_by_both_and_auto_classes_find_it(tmp_path: Path) -> None:
    mapping = transformers.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING
    before = dict(mapping._extra_content)
    try:
        own.register()
        for name, backend in zip(NAMES, ("torchvision", "pil"), strict=True):
            made, theirs = both(name)
            assert made.to_dict() == theirs.to_dict()
            made.save_pretrained(tmp_path)
            assert getattr(transformers, name).from_pretrained(tmp_path).to_dict() == theirs.to_dict()
            found = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
            assert type(found) is getattr(own, name)
            assert found.get_number_of_image_patches(150, 200) == len(found(COFFEE)["pixel_values"])
    finally:
        mapping._extra_content.clear()
        mapping._extra_content.update(before)


def test_what_is_refused() -> None:
    made, theirs = both(NAMES[0])
    for processor in (made, theirs):
        with pytest.raises(ValueError, match=r"^absolute aspect ratio must be smaller than 200, got 225\.0$"):
            processor(Image.new("RGB", (900, 4)))
    with pytest.raises(ValueError, match=r"^images\[1\]: .*JPEG is cut short"):
        made([COFFEE, encode(COFFEE, "JPEG")[:900]])
    with pytest.raises(ValueError, match="picture of float32 with 3 channels, expected uint8 and RGB"):
        made(np.zeros((50, 60, 3), np.float32))
    with pytest.raises(ValueError, match="picture of uint8 with 1 channels"):
        made(COFFEE.convert("L"), do_convert_rgb=False)
