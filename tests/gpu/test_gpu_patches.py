"""Patches of vision-language models on a GPU: the specification's in every bit, of what is no JPEG."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_files import downloaded, encoded

from onestream.preprocess import Decode, Definition, Normalize, Output, Patches, Resize, compile
from onestream.preprocess.backends.base import network_layout
from onestream.preprocess.patches.on_gpu import GpuProcessor

NORMALIZE = Normalize(mean=(0.481, 0.458, 0.408), std=(0.269, 0.261, 0.276), folded=True)


@pytest.mark.parametrize("arithmetic", ["aten", "pil"])
def test_patches_of_what_is_no_jpeg(arithmetic: Any, photos: dict[str, Any], record: Any) -> None:
    patches = Patches(patch=14)
    sizes: dict[str, Any] = {"mode": "area", "multiple_of": 28, "min_pixels": 3136, "max_pixels": 200_000}
    area = Resize(**sizes, filter="bicubic", arithmetic=arithmetic)
    definition = Definition(operations=[Decode(), area, NORMALIZE, patches])
    files = [encoded(photo.resize((300 + 31 * at, 260)), "PNG") for at, photo in enumerate(photos.values())]
    processor = GpuProcessor(definition, dtype="float32", max_batch_size=4)
    made = processor(files)
    (values,) = downloaded([made.pixel_values], processor.stream)
    whole = Definition(operations=[*definition.operations[:-1], Output(layout="NHWC")])
    pictures = compile(definition.pixels()).run(files)
    expected = np.concatenate([patches.rows(network_layout(whole, one)) for one in pictures])
    np.testing.assert_array_equal(values, expected)
    assert made.image_grid_thw.tolist() == [[*patches.grid(one.shape[:2])] for one in pictures]
    processor.close()
    record(f"patches, {arithmetic}: values that differ, of what is no JPEG", 0, "0")
