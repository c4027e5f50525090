"""Image processors that cut tiles: the definitions of their configs give their tiles in every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import noise
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazily
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.preprocess import CannotCompile, CannotImport, Definition
from onestream.preprocess.interop import from_huggingface, import_source, to_huggingface
from onestream.preprocess.patches import Processor
from onestream.serving.pipeline import BadPipeline, Pipeline

transformers = Lazily("transformers")
tokenizers = Lazily("tokenizers")

TILE = 14
SQUARE = {"height": TILE, "width": TILE}
POINTS = [[TILE * rows, TILE * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]
MODELS: dict[str, dict[str, Any]] = {
    "LlavaNext": {"size": {"shortest_edge": TILE}, "crop_size": SQUARE, "image_grid_pinpoints": POINTS},
    "LlavaOnevision": {"size": SQUARE, "image_grid_pinpoints": [[TILE, TILE], *POINTS]},
    "GotOcr2": {"size": SQUARE, "crop_to_patches": True, "min_patches": 2, "max_patches": 7},
    "Idefics3": {"size": {"longest_edge": 4 * TILE}, "max_image_size": {"longest_edge": TILE}},
    "SmolVLM": {"size": {"longest_edge": 51}, "max_image_size": {"longest_edge": TILE}, "resample": 3},
    "Idefics3, one tile": {
        "size": {"longest_edge": 30}, "max_image_size": {"longest_edge": TILE}, "do_image_splitting": False,
    },
    "Idefics3, no resize": {"do_resize": False, "max_image_size": {"longest_edge": TILE}},
}  # fmt: skip
SIDES = st.integers(1, 70)


def processor(model: str, backend: str, **more: Any) -> Any:
    return getattr(transformers, f"{model.split(',')[0]}ImageProcessor{backend}")(**{**MODELS[model], **more})


@given(
    size_hw=st.tuples(SIDES, SIDES) | st.tuples(st.integers(1, 2), st.integers(1, 200)),
    upright=st.booleans(),
    model=st.sampled_from(sorted(MODELS)),
    backend=st.sampled_from(["Pil", ""]),
)
def test_any_size(size_hw: tuple[int, int], upright: bool, model: str, backend: str) -> None:
    image = noise(*(size_hw[::-1] if upright else size_hw))
    made = processor(model, backend)
    theirs = made(images=[image], return_tensors="np", input_data_format="channels_last")
    with Processor(from_huggingface(made), dtype="float32") as own:
        seen = own([np.asarray(image)])
    expected = theirs["pixel_values"].reshape(-1, 3, TILE, TILE)
    assert seen.pixel_values.dtype == expected.dtype
    np.testing.assert_array_equal(seen.pixel_values, expected)
    if "image_sizes" in theirs:
        np.testing.assert_array_equal(seen.image_sizes, theirs["image_sizes"])
    if "num_patches" in theirs:
        np.testing.assert_array_equal(seen.image_grid_thw[:, 0], theirs["num_patches"])


def test_configs_as_the_hub_has_them(tmp_path: Path) -> None:
    """Of llava-v1.6-mistral-7b-hf and SmolVLM-Instruct."""
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    llava = {
        "aspect_ratio_setting": None, "crop_size": {"height": 336, "width": 336}, "do_center_crop": True,
        "do_convert_rgb": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True,
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]], "image_mean": mean,
        "image_processor_type": "LlavaNextImageProcessor", "image_std": std, "processor_class": "LlavaNextProcessor",
        "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 336},
    }  # fmt: skip
    smol = {
        "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True,
        "do_resize": True, "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "Idefics3ImageProcessor",
        "image_std": [0.5, 0.5, 0.5], "max_image_size": {"longest_edge": 384}, "processor_class": "Idefics3Processor",
        "resample": 1, "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 1536},
    }  # fmt: skip
    for config, size_hw, grid in ((llava, (1000, 700), (5, 2, 2)), (smol, (1000, 700), (13, 4, 3))):
        with Processor(from_huggingface(config)) as own:
            assert own.grids([size_hw]) == [grid]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(smol))
    imported = import_source(str(tmp_path))
    assert "It ends in tiles, which onestream.preprocess.patches.Processor makes in process" in imported.notes[-1]
    result = CliRunner().invoke(app, ["import", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert Definition.from_yaml(result.stdout) == imported.definition
    path = tmp_path / "tiles.yaml"
    path.write_text(f"network: none\npostprocess: {{kind: raw}}\npreprocess: {imported.definition.canonical_json()}\n")
    with pytest.raises(BadPipeline, match=r"ends in tiles, which .*Processor makes in process"):
        Pipeline.from_file(path)


@pytest.mark.parametrize("backend", ["Pil", ""])
def test_internvl_is_imported_as_its_processor_calls_it(backend: str, tmp_path: Path) -> None:
    """That of pictures and text turns tiles on; of the hub's two files, and of the object."""
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<c>"}
    names |= {"video_token": "<v>", "unk_token": "?", "pad_token": "?"}
    words = tokenizers.models.WordLevel({name: index for index, name in enumerate(dict.fromkeys(names.values()))}, "?")
    made = transformers.InternVLProcessor(
        processor("GotOcr2", backend, crop_to_patches=False),
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), **names),
        transformers.InternVLVideoProcessor(),
        image_seq_length=1,
    )
    image = noise(30, 50)
    expected = made(images=[image], text="<c>", return_tensors="np")["pixel_values"]
    assert len(expected) == 7
    config = made.image_processor.to_dict()
    config["image_processor_type"] = f"GotOcr2ImageProcessor{'' if backend else 'Fast'}"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**config, "processor_class": "InternVLProcessor"}))
    imported = import_source(str(tmp_path))
    joined = {"image_processor": config, "processor_class": "InternVLProcessor"}
    for definition in (imported.definition, from_huggingface(joined), from_huggingface(made)):
        with Processor(definition, dtype="float32") as own:
            np.testing.assert_array_equal(own([np.asarray(image)]).pixel_values, expected)
    said, resized, *_ = imported.notes
    assert "As InternVLProcessor calls its image processor: with crop_to_patches: true" in said
    assert f"arithmetic: {'pil' if backend else 'aten'})" in resized
    assert from_huggingface(config).for_processor is None


def test_definitions_give_configs_that_make_the_same_tiles() -> None:
    for model in MODELS:
        for backend in ("Pil", ""):
            definition = from_huggingface(processor(model, backend))
            assert from_huggingface(to_huggingface(definition)) == definition
    tiles = definition.for_processor
    assert tiles is not None
    without = [one.model_copy(update={"thumbnail": "none"}) if one is tiles else one for one in definition.operations]
    with pytest.raises(CannotCompile, match="thumbnail"):
        to_huggingface(Definition(operations=without))


def test_what_processors_pass_of_their_own() -> None:
    config = {**MODELS["GotOcr2"], "image_processor_type": "GotOcr2ImageProcessor", "resample": 3}
    config |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    assert from_huggingface({**config, "processor_class": "GotOcr2Processor"}).for_processor is None
    assert from_huggingface({**config, "processor_class": "InternVLProcessor"}) == from_huggingface(config)
    siglip = {key: value for key, value in config.items() if key not in MODELS["GotOcr2"]}
    siglip |= {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 12}
    for name, count in (("Siglip2Processor", 256), ("SiglipProcessor", 12), ("GotOcr2Processor", 12)):
        patches = from_huggingface({**siglip, "processor_class": name}).patches
        assert patches is not None
        assert patches.pad_to == count


@pytest.mark.parametrize(
    ("model", "fields", "reason"),
    [
        ("LlavaNext", {"crop_size": {"height": 13, "width": 13}}, "resized once more"),
        ("LlavaNext", {"image_grid_pinpoints": [[14, 30]]}, r"has \[14, 30\], which is not made of tiles of 14"),
        ("LlavaNext", {"image_grid_pinpoints": None}, "expected resolutions such as"),
        ("LlavaOnevision", {"size": {"height": 14, "width": 28}}, "tiles are squares"),
        ("LlavaOnevision", {"do_normalize": False}, "do_rescale and do_normalize must be true"),
        ("GotOcr2", {"min_patches": 9}, "min_tiles must be at most max_tiles"),
        ("Idefics3", {"size": {"longest_edge": 5000}}, "exact are up to 4096"),
        ("Idefics3", {"max_image_size": {"height": 14, "width": 14}}, "exact is longest_edge alone"),
        ("Idefics3", {"resample": None}, "does not state resample"),
    ],
)
def test_what_is_not_known_to_be_exact_is_refused(model: str, fields: dict[str, Any], reason: str) -> None:
    config = {**processor(model, "Pil").to_dict(), **fields}
    with pytest.raises(CannotImport, match=reason):
        from_huggingface(config)
