"""Tiles: the compiled loops against the specification, grids from sizes alone, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from definitions import chain
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image
from sample_images import photo

from onestream.preprocess import BadImage, CannotCompile, Limits, Normalize, Resize, Tiles, compile
from onestream.preprocess.geometry import Size
from onestream.preprocess.patches import Processor

IMAGENET = Normalize(mean=(0.48, 0.45, 0.4), std=(0.26, 0.25, 0.3))
GRIDS: list[dict[str, Any]] = [
    {"mode": "resolutions", "resolutions": ((2, 1), (1, 2), (2, 2), (3, 1)), "fit": "pad", "thumbnail": "first"},
    {"mode": "aspect_ratio", "max_tiles": 5},
    {"mode": "aspect_ratio", "min_tiles": 2, "max_tiles": 4, "fit": "pad", "thumbnail": "none"},
    {"mode": "multiple", "thumbnail_of": "grid"},
]
COFFEE = encode(photo("coffee").resize((50, 30)), "JPEG", quality=90)


def tiles(size: int, options: dict[str, Any], **more: Any) -> Tiles:
    resolutions = [[side * size for side in one] for one in options.get("resolutions", ())]
    return Tiles.model_validate({"size": size, **options, "resolutions": resolutions, **more})


@given(
    size_hw=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    size=st.sampled_from([1, 7, 14, 16, 17]),
    options=st.sampled_from(GRIDS),
    arithmetic=st.sampled_from(["pil", "aten"]),
    filter=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
    folded=st.booleans(),
    longest=st.none() | st.integers(1, 60),
)
def test_every_bit_is_the_specifications(
    size_hw: Size, size: int, options: Any, arithmetic: str, filter: str, folded: bool, longest: int | None
) -> None:
    made = tiles(size, options, arithmetic=arithmetic, filter=filter)
    before = [] if longest is None else [Resize(mode="longer", size=longest, rounding="even", filter=filter)]
    normalize = IMAGENET.model_copy(update={"folded": folded})
    definition = chain(*before, made, normalize)
    picture = np.random.default_rng(0).integers(0, 256, (*size_hw, 3), np.uint8)
    file = encode(Image.fromarray(picture), "PNG")
    levels = made.cut(compile(definition.pixels()).run([file])[0])
    expected = levels.astype(np.float32)
    for name, numbers in normalize.steps:
        numbers = numbers.reshape(-1, 1, 1)
        expected = expected - numbers if name == "mean" else expected / numbers
    for dtype, values in (("uint8", levels), ("float32", expected)):
        with Processor(definition, dtype=dtype) as processor:
            seen = processor([file, picture])
            np.testing.assert_array_equal(seen.pixel_values, np.concatenate([values, values]))
            assert seen.image_sizes.tolist() == [[*size_hw]] * 2
            ((count, rows, columns),) = processor.grids([size_hw])
            assert seen.image_grid_thw.tolist() == [[count, rows, columns]] * 2
            assert count == len(levels) == rows * columns + made.has_thumbnail((rows, columns))


def test_tiles_and_thumbnail_stand_where_they_are_said_to() -> None:
    """From left to right and from top to bottom, before or after the whole picture."""
    picture = np.repeat(np.arange(6, dtype=np.uint8).reshape(2, 3, 1), 3, axis=2)
    last = Tiles(size=1, mode="aspect_ratio", max_tiles=6, filter="nearest")
    assert last.cut(picture)[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 4]
    first = tiles(1, {"mode": "multiple", "thumbnail": "first", "filter": "nearest"})
    assert first.cut(picture)[:, 0, 0, 0].tolist() == [4, 0, 1, 2, 3, 4, 5]
    assert [len(one.cut(picture[:1, :1])) for one in (first, last)] == [2, 1]
    padded = Tiles(size=2, mode="resolutions", resolutions=((4, 2),), fit="pad", thumbnail="none", filter="nearest")
    assert padded.cut(picture + 1)[:, 0].tolist() == [[[0, 0], [1, 3]], [[4, 6], [0, 0]]]


def test_of_grids_of_the_same_ratio_the_larger_is_taken_for_larger_pictures() -> None:
    """As long as the tiles have less than twice the picture's pixels."""
    made = Tiles(size=14, mode="aspect_ratio", max_tiles=12)
    assert [made.grid((side, side)) for side in (19, 20, 29, 30)] == [(1, 1, 1), (5, 2, 2), (5, 2, 2), (10, 3, 3)]


def test_a_bad_picture_changes_nothing_of_the_others() -> None:
    line, cut = np.zeros((1, 5000, 3), np.uint8), COFFEE[: len(COFFEE) // 2]
    definition = chain(tiles(8, GRIDS[3]))
    with Processor(definition, threads=2, limits=Limits(max_pixels=30_000)) as processor:
        alone = processor([COFFEE])
        seen = processor([COFFEE, line, cut, b"", COFFEE])
        assert [str(error.code) for error in seen.errors.values()] == ["too_many_pixels", "corrupt", "empty"]
        assert "resized by the definition it would have 5000x8" in str(seen.errors[1])
        np.testing.assert_array_equal(seen.pixel_values, np.concatenate([alone.pixel_values] * 2))
        assert seen.image_grid_thw.tolist() == alone.image_grid_thw.tolist() * 2
        out = np.empty((99, 3, 8, 8), np.uint8)
        assert np.shares_memory(processor([COFFEE], out=out).pixel_values, out)
        with pytest.raises(ValueError, match=r"expected uint8\(\d+ or more, 3, 8, 8\), contiguous"):
            processor([COFFEE], out=out[:, :, 0])
        assert processor.token_counts([COFFEE], tokens_per_tile=9) == [9 * len(alone.pixel_values)]
        with pytest.raises(ValueError, match="how many tokens a tile becomes is the network's: give tokens_per_tile"):
            processor.token_counts([COFFEE])
        with pytest.raises(CannotCompile, match="videos take a definition that ends in patches, got tiles"):
            processor.videos([[COFFEE]])
        assert processor.content_hash(COFFEE) != Processor(chain(tiles(8, GRIDS[1]))).content_hash(COFFEE)
    with Processor(definition) as processor:
        (error,) = processor.grids([(1, 20_000)])
        assert isinstance(error, BadImage)
        assert "at most 16384 a side are allowed" in str(error)
