"""Rows of patches: compiled loops and a GPU of host memory against the specification, batches, and bad pictures."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cvcuda_on_host import cvcuda_on_host
from definitions import chain
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, jpeg_declaring, with_unknown_tables
from PIL import Image
from sample_images import noise, photo

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
from onestream.preprocess.geometry import Size
from onestream.preprocess.patches import DType, Processor
from onestream.preprocess.patches.on_gpu import GpuProcessor

FOLDED = Normalize(mean=(0.48, 0.45, 0.4), std=(0.26, 0.25, 0.3), folded=True)
SIDES = st.integers(1, 70)


def definition(
    *, patch: int = 14, temporal: int = 2, merge: int = 2, most: int = 28 * 28 * 16,
    normalize: Normalize | None = FOLDED, arithmetic: str = "aten", color: str = "rgb", **rows: Any,
) -> Definition:  # fmt: skip
    unit = patch * merge
    area = Resize(mode="area", multiple_of=unit, min_pixels=1, max_pixels=most, filter="bicubic", arithmetic=arithmetic)
    last = Patches(patch=patch, temporal=temporal, merge=merge, **rows)
    return chain(area, *([normalize] if normalize else []), last, color=color)


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
    layout=st.fixed_dictionaries(
        {
            "patch": st.sampled_from([1, 2, 7, 14, 16, 17, 33]),
            "temporal": st.integers(1, 3),
            "merge": st.integers(1, 3),
            "arithmetic": st.sampled_from(["pil", "aten"]),
            "color": st.sampled_from(["rgb", "bgr", "gray"]),
        }
    ),
    rows=st.sampled_from([{}, {"order": "raster", "flatten": False}, {"layout": "THWC"}]),
    folded=st.sampled_from([None, True, False]),
    seed=st.integers(0, 99),
)
def test_every_bit_is_the_specifications(
    size_hw: Size, layout: dict[str, Any], rows: dict[str, Any], folded: bool | None, seed: int
) -> None:
    channels = 1 if layout["color"] == "gray" else 3
    normalize = Normalize(mean=FOLDED.mean[:channels], std=FOLDED.std[:channels], folded=bool(folded))
    plain = definition(normalize=None, **layout, **rows)
    made = plain if folded is None else definition(normalize=normalize, **layout, **rows)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size_hw, 3), np.uint8)
    file = encode(Image.fromarray(pixels), "PNG")
    expected, levels = specified(made, file), specified(plain, file)
    for dtype, values in (("float32", expected), ("uint8", levels), ("bfloat16", bfloat16(expected))):
        with Processor(made, dtype=dtype) as processor:
            for picture in (file, pixels):
                seen = processor([picture])
                np.testing.assert_array_equal(seen.pixel_values, values)
                assert seen.errors == {}
                assert [tuple(grid) for grid in seen.image_grid_thw] == processor.grids([picture])
            assert processor.token_counts([size_hw]) == [len(values) // layout["merge"] ** 2]


@pytest.mark.parametrize("rows", [{"layout": "THWC", "pad_to": 60}, {"layout": "image"}], ids=["rows", "pictures"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_padding(rows: dict[str, Any], dtype: DType) -> None:
    """To what is stated, or to the largest good picture; one that turns out to be damaged takes no place."""
    fields = {"patch": 7, "temporal": 1, "merge": 1, "most": 2500, **rows}
    made, levels = definition(**fields), definition(normalize=None, **fields)
    files = [encode(photo("coffee").resize(size), "PNG") for size in ((40, 30), (20, 60), (62, 35))]
    damaged = with_unknown_tables(encode(photo("rocket").resize((70, 34)), "JPEG"))
    with Processor(made, dtype=dtype, threads=2) as processor:
        grids = processor.grids([*files, damaged])
        largest = (7 * max(grid[axis] for grid in grids) for axis in (1, 2))
        out = np.full((4, 60, 147) if "pad_to" in rows else (4, 3, *largest), 7, dtype)
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
    names = ["coffee", "rocket", "chelsea", "coffee", "rocket"][:count]
    files = [encode(photo(name).resize((50, 40)), "PNG") for name in names]
    frames = compile(made.pixels(), backend="reference").run(files)
    with Processor(made, threads=2) as processor:
        seen = processor.videos([files, files[:1]])
        assert made.patches is not None
        expected = [made.patches.rows(np.stack(frames)), made.patches.rows(frames[0])]
        np.testing.assert_array_equal(seen.pixel_values, np.concatenate(expected))
        assert [tuple(grid) for grid in seen.image_grid_thw.tolist()] == processor.grids([(count, 40, 50), files[:1]])
        assert list(seen.features()) == ["pixel_values_videos", "video_grid_thw"]


COFFEE = encode(photo("coffee").resize((120, 80)), "JPEG", quality=90)
BAD = {
    "empty": (b"", "empty"),
    "cut": (COFFEE[: len(COFFEE) // 2], "corrupt"),
    "bomb": (jpeg_declaring(30_000, 30_000), "too_many_pixels"),
    "line": (encode(Image.new("RGB", (201, 1)), "PNG"), "absolute aspect ratio must be smaller than 200, got 201.0"),
    "pixels of nothing": (np.zeros((0, 5, 3), np.uint8), "5x0 pixels"),
    "no levels": (np.zeros((40, 50, 3), np.float32), "float32(40, 50, 3), expected uint8 (height, width, 3)"),
    "no RGB": (np.zeros((40, 50, 4), np.uint8), "uint8(40, 50, 4), expected uint8 (height, width, 3)"),
    "known by the decoder only": (with_unknown_tables(COFFEE), "corrupt"),
}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_picture_changes_nothing_of_the_others(threads: int) -> None:
    good = [encode(photo(name).resize((width, 70)), "JPEG") for name, width in (("coffee", 90), ("rocket", 120))]
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
    with Processor(definition(), dtype="float32", threads=2) as processor, ThreadPoolExecutor(6) as threads:
        alone = [processor([file]).pixel_values for file in files]
        results = list(threads.map(lambda number: processor(files[number:] + files[:number]), range(6)))
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result.pixel_values, np.concatenate(alone[number:] + alone[:number]))


def test_a_hash_names_definition_type_and_content() -> None:
    pixels, processor = np.zeros((40, 50, 3), np.uint8), Processor(definition())
    seen = {
        one.content_hash(picture)
        for one in (processor, Processor(definition(), dtype="float32"), Processor(definition(patch=16)))
        for picture in (COFFEE, COFFEE + b"\0", pixels, pixels.reshape(50, 40, 3), pixels + 1)
    }
    assert len(seen) == 15
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
    cut = chain(CenterCrop(size=(28, 28)), Patches(patch=14))
    for made in (cut, definition(pad_to=99)):
        with Processor(made) as processor, pytest.raises(CannotCompile, match="videos take a definition of one resize"):
            processor.videos([[COFFEE]])
    with pytest.raises(CannotCompile, match="ends in output; a Processor is for one that ends in patches"):
        Processor(chain(CenterCrop(size=(28, 28))))
    twice = (Decode(), Resize(mode="shorter", size=90), *definition().operations[1:])
    with pytest.raises(CannotCompile, match="does one resize"):
        Processor(definition().model_copy(update={"operations": twice}))
    with Processor(definition(), limits=Limits(max_pixels=100)) as processor:
        assert "at most 100 are allowed" in str(processor([COFFEE]).errors[0])
    with Processor(definition(patch=7, pad_to=5)) as processor:
        assert "got 16 patches; the definition pads to 5" in str(processor.grids([(28, 28)])[0])


def assert_equal_on_gpu(made: Definition, dtype: DType, files: Sequence[bytes]) -> None:
    with Processor(made, dtype=dtype) as on_cpu:
        expected = on_cpu(files)
    with cvcuda_on_host():
        stream = HostDevice().stream()
        processor = GpuProcessor(made, dtype=dtype, stream=stream, max_batch_size=2)
        seen = processor(files)
        stream.sync()
        np.testing.assert_array_equal(view(seen.pixel_values), expected.pixel_values, strict=True)
    np.testing.assert_array_equal(seen.image_grid_thw, expected.image_grid_thw)
    assert str(seen.errors) == str(expected.errors)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=3),
    rows=st.sampled_from(
        [
            {},
            {"patch": 16, "merge": 1, "temporal": 1},
            {"patch": 7, "merge": 3, "order": "raster", "flatten": False},
            {"patch": 5, "temporal": 3, "layout": "THWC"},
        ]
    ),
    arithmetic=st.sampled_from(["pil", "aten"]),
    dtype=st.sampled_from(["uint8", "float32", "bfloat16"]),
)
def test_every_bit_of_a_gpu_is_the_cpus(sizes: list[Size], rows: Any, arithmetic: str, dtype: DType) -> None:
    files = [encode(noise(*size_hw), "PNG") for size_hw in sizes]
    assert_equal_on_gpu(definition(**rows, most=8000, arithmetic=arithmetic), dtype, files)


def test_bad_pictures_among_good_ones_on_a_gpu() -> None:
    good = [encode(photo(name).resize((60, 44)), "PNG") for name in ("coffee", "rocket")]
    bad = [b"", jpeg_declaring(30_000, 30_000)]
    for files in ([good[0], bad[0], bad[1], good[1]], bad, []):
        assert_equal_on_gpu(definition(most=8000), "float32", files)


def test_what_a_gpu_does_not_make_is_refused() -> None:
    for rows in ({"patch": 16, "merge": 1, "temporal": 1, "layout": "image"}, {"patch": 16, "merge": 1, "pad_to": 99}):
        with pytest.raises(CannotCompile, match="makes rows of patches without padding"):
            GpuProcessor(definition(**rows), stream=HostDevice().stream())
