"""A value for each pixel: where it lies in a picture, and what files of it hold."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from onestream.client import DenseMap
from onestream.postprocess.kinds import Opening
from onestream.postprocess.kinds.dense_map import DenseMap as Options
from onestream.preprocess import CenterCrop, Decode, Definition, Output, Resize


def maps(operations: list[object], grid: np.ndarray, size_hw: tuple[int, int], dropped: list[int]) -> np.ndarray:
    definition = Definition(operations=(Decode(), *operations, Output()))
    opened = Options().open(Opening(definition, dropped=dropped.append))
    (answer,) = opened({"y": grid[None]}, [size_hw])
    (values,) = answer["map"]
    return values


def test_values_are_interpolated_in_pixels_of_the_picture() -> None:
    torch = pytest.importorskip("torch")
    grid = np.random.default_rng(0).normal(size=(1, 4, 8)).astype(np.float32)
    values = maps([Resize(mode="exact", size=(32, 64))], grid, (50, 70), [])
    expected = torch.nn.functional.interpolate(torch.tensor(grid)[None], (50, 70), mode="bilinear")[0, 0].numpy()
    np.testing.assert_allclose(values, expected, atol=1e-4)  # sums are in another order


def test_what_a_crop_left_out_and_what_is_no_number_is_0() -> None:
    dropped: list[int] = []
    grid = np.ones((4, 4), np.float32)
    grid[1, 1] = np.nan
    crop = [Resize(mode="shorter", size=32), CenterCrop(size=(32, 32))]
    values = maps(crop, grid, (32, 64), dropped)
    assert (values[:, :16].any(), values[:, 48:].any(), dropped) == (False, False, [1])
    assert values[31, 16:48].tolist() == [1] * 32
    assert values[12, 28] < 0.2, "near the middle of the cell that is no number"


def test_a_file_of_16_bits_holds_the_values_and_colours_show_them() -> None:
    values = np.linspace(-3, 9, 12 * 20, dtype=np.float32).reshape(12, 20)
    result = DenseMap(values, model="m", request_id="", latency_ms=0)
    assert np.asarray(Image.open(io.BytesIO(result.to_png16()))).max() == 2**16 - 1
    again = DenseMap.from_dict(result.to_dict())
    np.testing.assert_allclose(again.map, values, atol=12 / 2**16)
    assert result.records(is_flat=True) == [{"low": -3, "high": 9, "mean": pytest.approx(3, abs=1e-5)}]
    drawn = np.asarray(result.draw(Image.new("RGB", (20, 12))))
    assert (drawn[0, 0, 2] > drawn[0, 0, 0], drawn[-1, -1, 0] > drawn[-1, -1, 2]) == (True, True)
    flat = DenseMap(np.zeros((2, 2), np.float32), model="m", request_id="", latency_ms=0)
    assert DenseMap.from_dict(flat.to_dict()).map.tolist() == [[0, 0], [0, 0]]
