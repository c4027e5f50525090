"""Patches on a GPU of host memory: every bit is that of ``Processor``, of what is no JPEG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cvcuda_on_host import cvcuda_on_host
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, jpeg_declaring
from PIL import Image
from sample_images import photo

from onestream.preprocess import CannotCompile, Decode, Definition, Normalize, Patches, Resize
from onestream.preprocess.patches import DType, Processor
from onestream.preprocess.patches.on_gpu import GpuProcessor

NORMALIZE = Normalize(mean=(0.48, 0.45, 0.4), std=(0.26, 0.25, 0.3), folded=True)
ROWS: dict[str, dict[str, Any]] = {
    "Qwen2-VL": {"patch": 14},
    "Qwen3-VL": {"patch": 16, "merge": 1, "temporal": 1},
    "raster": {"patch": 7, "merge": 3, "order": "raster", "flatten": False},
    "pixels beside each other": {"patch": 5, "temporal": 3, "layout": "THWC"},
}


def definition(rows: dict[str, Any], arithmetic: str = "aten") -> Definition:
    last = Patches(**rows)
    area = Resize(mode="area", multiple_of=last.unit, min_pixels=1, max_pixels=8000, filter="bicubic",
                  arithmetic=arithmetic)  # fmt: skip
    return Definition(operations=[Decode(), area, NORMALIZE, last])


def assert_equal(made: Definition, dtype: DType, files: Sequence[bytes]) -> None:
    with Processor(made, dtype=dtype) as on_cpu:
        expected = on_cpu(files)
    with cvcuda_on_host():
        stream = HostDevice().stream()
        processor = GpuProcessor(made, dtype=dtype, stream=stream, max_batch_size=2)
        seen = processor(files)
        stream.sync()
        np.testing.assert_array_equal(view(seen.pixel_values), expected.pixel_values, strict=True)
    np.testing.assert_array_equal(seen.image_grid_thw, expected.image_grid_thw)
    assert {index: str(error) for index, error in seen.errors.items()} == {
        index: str(error) for index, error in expected.errors.items()
    }


@given(
    sizes=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=3),
    rows=st.sampled_from([*ROWS]),
    arithmetic=st.sampled_from(["pil", "aten"]),
    dtype=st.sampled_from(["uint8", "float32", "bfloat16"]),
)
def test_every_bit_is_the_cpus(sizes: list[tuple[int, int]], rows: str, arithmetic: str, dtype: DType) -> None:
    random = np.random.default_rng(len(sizes))
    pixels = [random.integers(0, 256, (*size_hw, 3), np.uint8) for size_hw in sizes]
    assert_equal(definition(ROWS[rows], arithmetic), dtype, [encode(Image.fromarray(one), "PNG") for one in pixels])


def test_bad_pictures_among_good_ones() -> None:
    good = [encode(photo(name).resize((60, 44)), "PNG") for name in ("coffee", "rocket")]
    bad = [b"", jpeg_declaring(30_000, 30_000)]
    for files in ([good[0], bad[0], bad[1], good[1]], bad, []):
        assert_equal(definition(ROWS["Qwen2-VL"]), "float32", files)


def test_what_it_does_not_make_is_refused() -> None:
    for rows in ({"patch": 16, "merge": 1, "temporal": 1, "layout": "image"}, {"patch": 16, "merge": 1, "pad_to": 99}):
        with pytest.raises(CannotCompile, match="makes rows of patches without padding"):
            GpuProcessor(definition(rows), stream=HostDevice().stream())
