"""Video processors of Qwen2-VL, Qwen3-VL and GLM-4V: the same patches of the same frames in every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import encode
from lazily import Lazily
from PIL import Image

from onestream.preprocess import CannotImport, Patches, Resize
from onestream.preprocess.interop import from_huggingface, import_source
from onestream.preprocess.patches import Processor

torch, transformers = Lazily("torch"), Lazily("transformers")
own = Lazily("onestream.preprocess.patches.videos_for_transformers")
NAMES = ("Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor", "Glm4vVideoProcessor", "Glm46VVideoProcessor")
SIDES = st.integers(8, 60)


def noise(shape: tuple[int, int, int]) -> np.ndarray:
    """Frames of random pixels."""
    return np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), np.uint8)


def theirs_of(made: Any, videos: list[np.ndarray]) -> Any:
    return made(videos, do_sample_frames=False, return_tensors="pt")


def assert_equal(seen: Any, expected: Any) -> None:
    assert list(seen) == list(expected)
    for name, values in expected.items():
        assert torch.equal(torch.as_tensor(seen[name]), values), name
        assert torch.as_tensor(seen[name]).dtype == values.dtype


@settings(max_examples=40)
@given(
    name=st.sampled_from(NAMES),
    shapes=st.lists(st.tuples(st.integers(1, 6), SIDES, SIDES | st.just(900)), min_size=1, max_size=2),
    upright=st.booleans(),
    least=st.integers(1, 9_000),
    more=st.integers(0, 60_000),
    patch=st.integers(2, 14),
    temporal=st.integers(1, 3),
    merge=st.integers(1, 3),
    cap=st.none() | st.integers(1, 400),
)
def test_frames(
    name: str, shapes: list[tuple[int, int, int]], upright: bool, least: int, more: int, patch: int, temporal: int,
    merge: int, cap: int | None,
) -> None:  # fmt: skip
    capped = {"cap_pixels_per_frame": True, "max_video_tokens": cap} if cap and "Qwen" in name else {}
    made = getattr(transformers, name)(
        size={"shortest_edge": least, "longest_edge": least + more}, patch_size=patch, temporal_patch_size=temporal,
        merge_size=merge, **capped,
    )  # fmt: skip
    videos = [noise((count, width, height) if upright else (count, height, width)) for count, height, width in shapes]
    with Processor(from_huggingface(made), dtype="float32") as processor:
        seen = processor.videos(videos)
        for index, error in seen.errors.items():
            reason = r"absolute aspect ratio|must be larger than temporal_factor"
            with pytest.raises(ValueError, match=reason) as theirs:
                theirs_of(made, [videos[index]])
            assert error.reason == str(theirs.value)
        good = [video for index, video in enumerate(videos) if index not in seen.errors]
        if good:
            assert_equal(seen.features(), theirs_of(made, good))
        sizes = [video.shape[:3] for video in good]
        grids = [tuple(grid) for grid in seen.image_grid_thw.tolist()]
        assert processor.grids(sizes) == processor.grids(good) == grids
        if capped and name == "Qwen2VLVideoProcessor":
            return  # transformers' counts leave the cap out
        counts = [made.get_num_of_video_patches(*size, videos_kwargs={}) for size in sizes]
        assert processor.token_counts(sizes) == [count // merge**2 for count in counts]


def test_encoded_frames_and_bad_ones() -> None:
    """A bad frame is named, and changes nothing of other videos; frames of one video have one size."""
    made = transformers.Qwen2VLVideoProcessor(size={"shortest_edge": 784, "longest_edge": 4000})
    video = noise((3, 40, 50))
    files = [encode(Image.fromarray(frame), "PNG") for frame in video]
    damaged = encode(Image.fromarray(video[0]), "JPEG").replace(b"\xff\xdb\x00\x43\x01", b"\xff\xdb\x00\x43\x05", 1)
    with Processor(from_huggingface(made), dtype="float32", threads=2) as processor:
        bad: list[Any] = [[], [files[0], b"no picture"], [files[0], damaged], [files[0], noise((1, 50, 40))[0]]]
        seen = processor.videos([files, *bad, [video[0], files[1], video[2]]])
        assert_equal(seen.features(), theirs_of(made, [video, video]))
        assert list(seen.errors) == [1, 2, 3, 4]
        none, text, broken, other = (str(error) for error in seen.errors.values())
        assert "a video without frames" in none
        assert "frame 1: got text; allowed" in text
        assert "frame 1: " in broken
        assert "frame 1 is 40x50 pixels, frame 0 is 50x40" in other
        hashes = [processor.content_hash(one) for one in (files, files[:2], video, list(video), files[0])]
        assert len(set(hashes)) == 4
        assert hashes[2] == hashes[3]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", NAMES)
def test_where_transformers_video_processor_is_expected(name: str, tmp_path: Path) -> None:
    theirs = getattr(transformers, name)(size={"shortest_edge": 784, "longest_edge": 20_000}, do_sample_frames=False)
    theirs.save_pretrained(tmp_path)
    made = transformers.AutoVideoProcessor.from_pretrained(tmp_path)
    assert type(made) is getattr(own, name)
    assert made.to_dict() == theirs.to_dict()
    video = noise((5, 40, 60))
    for videos in (video, [video, noise((4, 30, 30))], torch.from_numpy(video.transpose(0, 3, 1, 2).copy())):
        assert_equal(made(videos, return_tensors="pt"), theirs(videos, return_tensors="pt"))
    options = {"patch_size": 8, "image_mean": [0.1, 0.2, 0.3], "return_tensors": "pt"}
    assert_equal(made(video, **options), theirs(video, **options))
    if name.startswith("Qwen"):
        options = {"cap_pixels_per_frame": True, "max_video_tokens": 3, "return_tensors": "pt"}
        theirs.max_video_tokens = made.max_video_tokens = 5
        assert_equal(made(video, **options), theirs(video, **options))


def test_configs_as_the_hub_has_them(tmp_path: Path) -> None:
    config = {
        "size": {"longest_edge": 25165824, "shortest_edge": 4096}, "patch_size": 16, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "fps": 2, "max_frames": 768,
        "do_sample_frames": True,
        "video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor",
    }  # fmt: skip
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(config))
    definition = import_source(str(tmp_path / "video_preprocessor_config.json")).definition
    assert definition.patches == Patches(patch=16)
    assert definition.resize == Resize(
        mode="area", multiple_of=32, min_pixels=4096, max_pixels=25165824, small="together", temporal=2,
        filter="bicubic", arithmetic="aten",
    )  # fmt: skip
    resize = from_huggingface({**config, "cap_pixels_per_frame": True}).resize
    assert resize is not None
    assert resize.cap_pixels == 768 * 32 * 32
    with pytest.raises(CannotImport, match="cap_pixels_per_frame is True"):
        from_huggingface({**config, "cap_pixels_per_frame": True, "video_processor_type": "Glm4vVideoProcessor"})
