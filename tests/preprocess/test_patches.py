"""Rows of patches: the compiled loops against the specification, batches, and what a bad picture does to them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, jpeg_declaring
from PIL import Image
from sample_images import photo

from onestream.preprocess import (
    BadImage,
    CannotCompile,
    CenterCrop,
    Decode,
    Definition,
    Limits,
    Normalize,
    Patches,
    Resize,
    compile,
)
from onestream.preprocess.backends.base import network_layout
from onestream.preprocess.patches import DType, Patched, Processor

FOLDED = Normalize(mean=(0.48, 0.45, 0.4), std=(0.26, 0.25, 0.3), folded=True)
SIDES = st.integers(1, 70)


def definition(
    *, patch: int = 14, temporal: int = 2, merge: int = 2, most: int = 28 * 28 * 16,
    normalize: Normalize | None = FOLDED, arithmetic: str = "aten", color: str = "rgb", **rows: Any,
) -> Definition:  # fmt: skip
    area = Resize(mode="area", multiple_of=patch * merge, min_pixels=1, max_pixels=most, filter="bicubic",
                  arithmetic=arithmetic)  # fmt: skip
    last = Patches(patch=patch, temporal=temporal, merge=merge, **rows)
    return Definition(operations=[Decode(color=color), area, *([normalize] if normalize else []), last])


def specified(of: Definition, file: bytes) -> np.ndarray:
    """The rows of one picture by Pillow and NumPy, in float32."""
    assert of.patches is not None
    (pixels,) = compile(of.pixels(), backend="reference").run([file])
    whole = Definition(operations=[*of.operations[:-1]]).with_layout("NHWC")
    return of.patches.rows(network_layout(whole, pixels))


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearer of the two neighbours, by their distance; of two as near the one with an even last bit."""
    below = values.view(np.uint32) >> 16
    candidates = [(bits << 16).view(np.float32).astype(np.float64) for bits in (below, below + 1)]
    distances = [np.abs(candidate - values) for candidate in candidates]
    up = (distances[1] < distances[0]) | ((distances[1] == distances[0]) & (below % 2 == 1))
    return (below + up).astype(np.uint16)


@given(
    size_hw=st.tuples(SIDES, SIDES) | st.tuples(st.integers(1, 2), st.integers(100, 200)),
    patch=st.sampled_from([1, 2, 7, 14, 16, 17, 33]),
    temporal=st.integers(1, 3),
    merge=st.integers(1, 3),
    normalize=st.sampled_from([None, FOLDED, FOLDED.model_copy(update={"folded": False})]),
    arithmetic=st.sampled_from(["pil", "aten"]),
    rows=st.sampled_from([{}, {"order": "raster", "flatten": False}, {"layout": "THWC"}]),
    seed=st.integers(0, 99),
)
def test_every_bit_is_the_specifications(
    size_hw: tuple[int, int],
    patch: int,
    temporal: int,
    merge: int,
    normalize: Normalize | None,
    arithmetic: str,
    rows: dict[str, Any],
    seed: int,
) -> None:
    layout = {"patch": patch, "temporal": temporal, "merge": merge, "arithmetic": arithmetic, **rows}
    made = definition(normalize=normalize, **layout)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size_hw, 3), np.uint8)
    file = encode(Image.fromarray(pixels), "PNG")
    expected = specified(made, file)
    levels = specified(definition(normalize=None, **layout), file)
    for dtype, values in (("float32", expected), ("uint8", levels), ("bfloat16", bfloat16(expected))):
        with Processor(made, dtype=dtype) as processor:
            for picture in (file, pixels):
                seen = processor([picture])
                np.testing.assert_array_equal(seen.pixel_values, values)
                assert seen.errors == {}
                assert [tuple(grid) for grid in seen.image_grid_thw] == processor.grids([picture])
            (tokens,) = processor.token_counts([size_hw])
            assert tokens == len(values) // merge**2


@pytest.mark.parametrize("rows", [{"layout": "THWC", "pad_to": 60}, {"layout": "image"}], ids=["rows", "pictures"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_padding(rows: dict[str, Any], dtype: DType) -> None:
    """To what is stated, or to the largest good picture; one that turns out to be damaged takes no place."""
    fields = {"patch": 7, "temporal": 1, "merge": 1, "most": 2500, **rows}
    made, levels = definition(**fields), definition(normalize=None, **fields)
    files = [encode(photo("coffee").resize(size), "PNG") for size in ((40, 30), (20, 60), (62, 35))]
    damaged = encode(photo("rocket").resize((70, 34)), "JPEG").replace(
        b"\xff\xdb\x00\x43\x01", b"\xff\xdb\x00\x43\x05", 1
    )
    with Processor(made, dtype=dtype, threads=2) as processor:
        grids = processor.grids([*files, damaged])
        shape = (
            (4, 60, 147) if "pad_to" in rows else (4, 3, *(7 * max(grid[axis] for grid in grids) for axis in (1, 2)))
        )
        out = np.full(shape, 7, dtype)
        for seen in (processor([files[0], damaged, *files[1:]], out=out), processor([files[0], b"", *files[1:]])):
            assert list(seen.errors) == [1]
            assert [tuple(grid) for grid in seen.image_grid_thw.tolist()] == grids[:3]
            features = seen.features()
            for index, file in enumerate(files):
                expected = specified(made if dtype == "float32" else levels, file)
                values = features["pixel_values"][index]
                if "pad_to" in rows:
                    assert features["pixel_attention_mask"][index].sum() == np.prod(features["spatial_shapes"][index])
                    np.testing.assert_array_equal(values, expected)
                    continue
                height, width = features["image_sizes"][index]
                np.testing.assert_array_equal(values[:, :height, :width], expected)
                assert not values[:, height:].any()
                assert not values[:, :, width:].any()
        assert seen.pixel_values.shape == (3, *processor(files).pixel_values.shape[1:])
        assert len(processor([b""]).pixel_values) == 0


@pytest.mark.parametrize(
    "rows", [{}, {"layout": "THWC", "color": "bgr", "arithmetic": "pil"}], ids=["c first", "c last"]
)
@pytest.mark.parametrize("count", [1, 4, 5])
def test_videos(rows: dict[str, Any], count: int) -> None:
    """Frames are resized as pictures are; the last one is repeated until a row is full."""
    made = definition(patch=7, temporal=3, most=1200, normalize=None, **rows)
    files = [
        encode(photo(name).resize((50, 40)), "PNG") for name in ("coffee", "rocket", "chelsea", "coffee", "rocket")
    ]
    frames = compile(made.pixels(), backend="reference").run(files[:count])
    with Processor(made, threads=2) as processor:
        seen = processor.videos([files[:count], files[:1]])
        assert made.patches is not None
        expected = [made.patches.rows(np.stack(frames)), made.patches.rows(frames[0])]
        np.testing.assert_array_equal(seen.pixel_values, np.concatenate(expected))
        assert [tuple(grid) for grid in seen.image_grid_thw.tolist()] == processor.grids([(count, 40, 50), files[:1]])
        assert list(seen.features()) == ["pixel_values_videos", "video_grid_thw"]


def test_videos_take_one_resize_and_rows() -> None:
    cut = Definition(operations=[Decode(), CenterCrop(size=(28, 28)), Patches(patch=14)])
    padded = definition(pad_to=99)
    for made in (cut, padded):
        with Processor(made) as processor, pytest.raises(CannotCompile, match="videos take a definition of one resize"):
            processor.videos([[COFFEE]])


def test_more_patches_than_a_definition_pads_to_are_refused() -> None:
    with Processor(definition(patch=7, pad_to=5)) as processor:
        (grid,) = processor.grids([(28, 28)])
    assert isinstance(grid, BadImage)
    assert "got 16 patches; the definition pads to 5" in str(grid)


@pytest.mark.parametrize("color", ["gray", "bgr"])
def test_other_channels(color: str) -> None:
    made = definition(color=color, normalize=None)
    file = encode(photo("coffee").resize((90, 60)), "JPEG")
    with Processor(made, dtype="float32") as processor:
        np.testing.assert_array_equal(processor([file]).pixel_values, specified(made, file))


COFFEE = encode(photo("coffee").resize((120, 80)), "JPEG", quality=90)
BAD = {
    "empty": (b"", "empty"),
    "cut": (COFFEE[: len(COFFEE) // 2], "corrupt"),
    "bomb": (jpeg_declaring(30_000, 30_000), "too_many_pixels"),
    "line": (encode(Image.new("RGB", (201, 1)), "PNG"), "absolute aspect ratio must be smaller than 200, got 201.0"),
    "pixels of nothing": (np.zeros((0, 5, 3), np.uint8), "5x0 pixels"),
    "no levels": (np.zeros((40, 50, 3), np.float32), "float32(40, 50, 3), expected uint8 (height, width, 3)"),
    "no RGB": (np.zeros((40, 50, 4), np.uint8), "uint8(40, 50, 4), expected uint8 (height, width, 3)"),
    "known by the decoder only": (COFFEE.replace(b"\xff\xdb\x00\x43\x01", b"\xff\xdb\x00\x43\x05", 1), "corrupt"),
}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_picture_changes_nothing_of_the_others(threads: int) -> None:
    good = [
        encode(photo(name).resize((90 + 30 * number, 70)), "JPEG") for number, name in enumerate(("coffee", "rocket"))
    ]
    bad = [file for file, _ in BAD.values()]
    with Processor(definition(), threads=threads) as processor:
        alone = [processor([file]) for file in good]
        seen = processor([good[0], *bad, good[1], *bad])
        assert list(seen.errors) == [*range(1, 9), *range(10, 18)]
        for number, (_, reason) in enumerate(BAD.values(), start=1):
            assert reason in str(seen.errors[number])
            assert str(seen.errors[number]) == str(seen.errors[number + 9])
        np.testing.assert_array_equal(seen.pixel_values, np.concatenate([one.pixel_values for one in alone]))
        np.testing.assert_array_equal(seen.image_grid_thw, np.concatenate([one.image_grid_thw for one in alone]))
        only_bad = processor(bad)
        assert only_bad.pixel_values.shape == (0, 3 * 2 * 14 * 14)
        assert only_bad.image_grid_thw.shape == (0, 3)
        # Counts come from headers, which know nothing of damage behind them.
        counts = processor.token_counts(bad)
        assert [isinstance(count, BadImage) for count in counts] == [True] * 7 + [False]
    with Processor(definition()) as processor:
        empty = processor([])
        assert (empty.pixel_values.shape, empty.image_grid_thw.shape, empty.errors) == ((0, 1176), (0, 3), {})


def test_a_header_is_enough_to_count_tokens() -> None:
    """Damaged data behind it changes nothing, since nothing is decoded."""
    file = encode(Image.new("RGB", (640, 480)), "PNG")
    with Processor(definition(most=12_845_056)) as processor:
        expected = (480 // 28) * round(640 / 28)
        assert processor.token_counts([file, (480, 640)]) == [expected, expected]
        assert processor.token_counts([bytes(file[:60]) + bytes(len(file) - 72) + file[-12:]]) == [expected]


def test_memory_of_the_caller_takes_the_rows() -> None:
    with Processor(definition()) as processor:
        expected = processor([COFFEE, COFFEE])
        out = np.full((len(expected.pixel_values) + 3, 1176), 7, np.uint8)
        seen = processor([COFFEE, COFFEE], out=out)
        assert np.shares_memory(seen.pixel_values, out)
        np.testing.assert_array_equal(seen.pixel_values, expected.pixel_values)
        assert (out[-3:] == 7).all()
        for bad in (out[:2], out.astype(np.float32), out[:, :9], out[::-1], np.zeros(1176, np.uint8)):
            with pytest.raises(ValueError, match=r"expected uint8\(\d+ or more, 1176\), contiguous, writable"):
                processor([COFFEE, COFFEE], out=bad)


def test_threads_may_share_a_processor() -> None:
    files = [encode(photo("rocket").resize((60 + 9 * number, 50)), "JPEG") for number in range(6)]
    results: dict[int, Patched] = {}
    with Processor(definition(), dtype="float32", threads=2) as processor:
        alone = [processor([file]).pixel_values for file in files]
        callers = [
            threading.Thread(target=lambda n=number: results.update({n: processor(files[n:] + files[:n])}))
            for number in range(len(files))
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    for number in range(len(files)):
        np.testing.assert_array_equal(results[number].pixel_values, np.concatenate(alone[number:] + alone[:number]))


def test_a_hash_names_definition_type_and_content() -> None:
    pixels = np.zeros((40, 50, 3), np.uint8)
    makers: list[tuple[Definition, DType]] = [
        (definition(), "uint8"), (definition(), "float32"), (definition(patch=16), "uint8"),
    ]  # fmt: skip
    seen = {
        Processor(made, dtype=dtype).content_hash(picture)
        for made, dtype in makers
        for picture in (COFFEE, COFFEE + b"\0", pixels, pixels.reshape(50, 40, 3), pixels + 1)
    }
    assert len(seen) == 15
    processor = Processor(definition())
    assert processor.content_hash(memoryview(COFFEE)) == processor.content_hash(COFFEE)
    assert processor.content_hash(pixels[:, ::-1]) == processor.content_hash(pixels)


def test_tensors_share_the_memory() -> None:
    torch = pytest.importorskip("torch")
    with Processor(definition(), dtype="bfloat16") as processor:
        made = processor([COFFEE])
        values, grid = made.to_torch()
        assert (values.dtype, grid.dtype) == (torch.bfloat16, torch.int64)
        made.pixel_values[0, 0] = 0x3F80
        assert float(values[0, 0]) == 1.0


def test_what_cannot_be_executed_is_refused() -> None:
    with pytest.raises(CannotCompile, match="ends in output; a Processor is for one that ends in patches"):
        Processor(Definition(operations=[Decode(), CenterCrop(size=(28, 28))]))
    twice = definition().model_copy(
        update={"operations": (Decode(), Resize(mode="shorter", size=90), *definition().operations[1:])}
    )
    with pytest.raises(CannotCompile, match="does one resize"):
        Processor(twice)
    with Processor(definition(), limits=Limits(max_pixels=100)) as processor:
        assert "at most 100 are allowed" in str(processor([COFFEE]).errors[0])
