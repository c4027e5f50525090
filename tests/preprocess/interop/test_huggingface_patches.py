"""Image processors of vision-language models: the definitions of their configs give their patches in every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import noise
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from lazily import Lazily
from PIL import Image
from sample_images import photo
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.preprocess import CannotImport, Definition
from onestream.preprocess.interop import from_huggingface, import_source, to_huggingface
from onestream.preprocess.patches import Processor

torch, transformers = Lazily("torch"), Lazily("transformers")

QWEN3: dict[str, Any] = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "Qwen2-VL": {"min_pixels": 3136, "max_pixels": 12845056},
    "Qwen2-VL, few pixels": {"min_pixels": 50176, "max_pixels": 200704},
    "Qwen3-VL": QWEN3,
    "other patches": {**QWEN3, "size": {"shortest_edge": 1, "longest_edge": 90000}, "patch_size": 7, "merge_size": 3,
                      "temporal_patch_size": 1, "resample": 2, "rescale_factor": 1 / 127.5},
}  # fmt: skip
BACKENDS = ("Pil", "")
PHOTOS = [
    photo("coffee"),
    photo("astronaut").resize((1920, 1080)),
    photo("rocket").resize((97, 311)),
    photo("chelsea").resize((1700, 9)),
]


def processor(options: dict[str, Any], backend: str) -> Any:
    return getattr(transformers, f"Qwen2VLImageProcessor{backend}")(**options)


def assert_equal(made: Any, images: list[Image.Image], definition: Definition) -> None:
    theirs = made(images=images, return_tensors="pt")
    with Processor(definition, dtype="float32") as own:
        for pictures in ([encode(image, "PNG") for image in images], [np.asarray(image) for image in images]):
            values, grid = own(pictures).to_torch()
            assert values.dtype == theirs["pixel_values"].dtype
            assert torch.equal(grid, theirs["image_grid_thw"])
            assert torch.equal(values, theirs["pixel_values"])
        counts = own.token_counts([(image.height, image.width) for image in images])
    patches = [made.get_number_of_image_patches(image.height, image.width) for image in images]
    assert counts == [count // made.merge_size**2 for count in patches]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_photos(name: str, backend: str) -> None:
    made = processor(MODELS[name], backend)
    assert_equal(made, PHOTOS, from_huggingface(made))


@given(
    size_hw=st.tuples(st.integers(1, 300), st.integers(1, 300)) | st.tuples(st.integers(1, 4), st.integers(1, 900)),
    upright=st.booleans(),
    least=st.integers(1, 20_000),
    more=st.integers(0, 60_000),
    patch=st.integers(1, 20),
    merge=st.integers(1, 3),
    backend=st.sampled_from(BACKENDS),
)
def test_any_size(
    size_hw: tuple[int, int], upright: bool, least: int, more: int, patch: int, merge: int, backend: str
) -> None:
    size_hw = size_hw[::-1] if upright else size_hw
    options = {"min_pixels": least, "max_pixels": least + more, "patch_size": patch, "merge_size": merge}
    made = processor(options, backend)
    definition, image = from_huggingface(made), noise(*size_hw)
    if max(size_hw) <= 200 * min(size_hw):
        assert_equal(made, [image], definition)
        return
    with pytest.raises(ValueError, match="absolute aspect ratio") as theirs:
        made(images=[image])
    with Processor(definition) as own:
        (error,) = own([np.asarray(image)]).errors.values()
    assert error.reason == str(theirs.value)


def test_configs_as_the_hub_has_them(tmp_path: Path) -> None:
    """Of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: fields that are missing have their defaults, others are null."""
    common = {
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711], "processor_class": "Qwen2VLProcessor",
    }  # fmt: skip
    qwen2 = {"min_pixels": 3136, "max_pixels": 12845056, "image_processor_type": "Qwen2VLImageProcessor", **common}
    definition = from_huggingface(qwen2)
    assert definition == from_huggingface(processor(MODELS["Qwen2-VL"], "Pil"))
    assert definition == from_huggingface({**qwen2, "image_processor_type": "Qwen2VLImageProcessorPil"})
    of_tensors = {**qwen2, "image_processor_type": "Qwen2VLImageProcessorFast", "size": None, "do_pad": None}
    assert from_huggingface(of_tensors) == from_huggingface(processor(MODELS["Qwen2-VL"], ""))
    within = {**of_tensors, "min_pixels": None, "max_pixels": None}
    for size in ({"min_pixels": 3136, "max_pixels": 12845056}, {"shortest_edge": 3136, "longest_edge": 12845056}):
        assert from_huggingface({**within, "size": size}) == from_huggingface(of_tensors)

    (tmp_path / "preprocessor_config.json").write_text(json.dumps(of_tensors))
    imported = import_source(str(tmp_path))
    assert "Processor makes" in imported.notes[-1]
    result = CliRunner().invoke(app, ["import", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert Definition.from_yaml(result.stdout) == imported.definition == from_huggingface(of_tensors)
    for definition in (imported.definition, from_huggingface(qwen2), from_huggingface(processor(QWEN3, ""))):
        assert from_huggingface(to_huggingface(definition)) == definition


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_pixels": None}, "does not state min_pixels and max_pixels"),
        ({"max_pixels": 7}, "at most max_pixels"),
        ({"max_pixels": "many"}, "max_pixels is 'many', expected a whole number"),
        ({"do_rescale": False}, "do_rescale and do_normalize must be true"),
        ({"do_normalize": False}, "do_rescale and do_normalize must be true"),
        ({"do_resize": False}, "must divide the sides"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"do_pad": True}, "do_pad is True"),
    ],
)
def test_what_is_not_known_to_be_exact_is_refused(fields: dict[str, Any], reason: str) -> None:
    config = processor(MODELS["Qwen2-VL"], "Pil").to_dict() | {"size": None, "min_pixels": 3136, "max_pixels": 12845056}
    from_huggingface(config)
    with pytest.raises(CannotImport, match=reason):
        from_huggingface(config | fields)
