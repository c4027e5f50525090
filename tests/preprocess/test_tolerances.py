"""The table is complete and the comparison judges by it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definitions import AS_IT_IS, chain
from varied_tolerances import VARIED, varied_tolerance

from onestream.preprocess import Normalize, Output
from onestream.preprocess.tolerances import TOLERANCES, Source, compare, tolerance

LEVELS = np.random.default_rng(0).integers(10, 240, (40, 50, 3)).astype(np.uint8)


def test_every_backend_stage_and_source_has_one_entry_with_a_reason() -> None:
    keys = [((entry.backend, entry.device, entry.hq), entry.stage, entry.source) for entry in TOLERANCES]
    backends = [("dali", "cpu", False), ("dali", "gpu", False), ("cvcuda", "gpu", False), ("cvcuda", "gpu", True)]
    stages, sources = ("decode", "resize", "crop", "normalize"), ("plain", "converted")
    of_regions = itertools.product(backends[:1], ["region"], sources)
    assert sorted(keys) == sorted([*itertools.product(backends, stages, sources), *of_regions])
    for entry in TOLERANCES:
        assert entry.reason
        assert tolerance(entry.backend, entry.stage, entry.source, entry.device, hq=entry.hq) is entry
        assert 0 <= entry.share_above_one <= entry.share_different <= 1
    with pytest.raises(KeyError, match="cvcuda"):
        tolerance("cvcuda", "decode")
    with pytest.raises(KeyError, match=r"dali.*'hq'"):
        tolerance("dali", "decode", device="gpu", hq=True)


def test_the_page_of_augmentations_shows_the_bounds_of_varied_pixels_and_their_reasons() -> None:
    page = (Path(__file__).parents[2] / "docs" / "augmentation.md").read_text(encoding="utf-8")
    table = page[page.index("| backend | what | allowed | why |") :].partition("\n\n")[0].strip().split("\n")[2:]
    assert table == [f"| {entry.backend} | {entry.what} | {entry.text} | {entry.reason} |" for entry in VARIED]
    with pytest.raises(KeyError, match="'cvcuda' and 'box'"):
        varied_tolerance("cvcuda", "box")


def test_varied_pixels_are_judged_by_their_largest_and_mean() -> None:
    other = LEVELS.copy()
    other[0, :10] += 4
    allowed = varied_tolerance("dali", "colours")
    assert allowed.allows(other, LEVELS)
    other[0, 0, 0] += 1
    assert not allowed.allows(other, LEVELS)
    assert not varied_tolerance("dali", "box").allows(LEVELS[:, :1] + 1, LEVELS[:, :1])
    assert varied_tolerance("cvcuda", "plain").allows(LEVELS, LEVELS)


def test_figures_of_a_known_difference() -> None:
    other = LEVELS.copy()
    other[0, :10] += 1
    other[1, :5] -= 3
    seen = compare(LEVELS, other, definition=AS_IT_IS, stage="resize", backend="dali")
    assert seen.max == 3
    assert seen.mean == pytest.approx((30 + 45) / 6000)
    assert seen.share_different == pytest.approx(45 / 6000)
    assert seen.share_above_one == pytest.approx(15 / 6000)
    assert seen.percentile_99_9 == 3
    assert not seen.within
    assert compare(LEVELS, other, definition=AS_IT_IS, stage="resize", backend="dali", source="converted").within


@pytest.mark.parametrize(
    ("changed", "more", "source"),
    [(np.s_[0, 0, 0], 5, "converted"), (np.s_[:], 1, "plain"), (np.s_[:8], 2, "converted")],
    ids=["max_level", "share_different", "share_above_one"],
)
def test_each_bound_refuses_alone(changed: Any, more: int, source: Source) -> None:
    other = LEVELS.astype(int)
    other[changed] += more
    seen = compare(LEVELS, other.astype(np.uint8), definition=AS_IT_IS, stage="crop", backend="dali", source=source)
    assert not seen.within


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalized_samples_are_judged_in_levels(layout: str, dtype: str) -> None:
    mean, std = np.float32([0.4, 0.5, 0.6]), np.float32([0.1, 0.25, 0.4])
    definition = chain(Normalize(mean=mean.tolist(), std=std.tolist()), Output(layout=layout, dtype=dtype))

    def normalized(levels: np.ndarray) -> np.ndarray:
        values = ((levels.astype(np.float32) / 255 - mean) / std).astype(dtype)
        return values if layout == "NHWC" else values.transpose(2, 0, 1)

    other = LEVELS.copy()
    other[5, 5] += np.uint8([1, 2, 3])
    seen = compare(normalized(LEVELS), normalized(other), definition=definition, stage="normalize", backend="dali")
    assert seen.max == pytest.approx(3, abs=1e-9)
    assert seen.share_different == pytest.approx(3 / 6000)
    assert seen.share_above_one == pytest.approx(2 / 6000)
    if dtype == "float32":
        shifted = normalized(LEVELS) + np.float32(0.01)
        drift = compare(normalized(LEVELS), shifted, definition=definition, stage="normalize", backend="dali")
        assert drift.max == pytest.approx(0.01 * 0.4 * 255, rel=1e-3)


def test_another_shape_or_dtype_is_an_error_and_not_a_difference() -> None:
    with pytest.raises(ValueError, match=r"uint8\(40, 49, 3\) after crop, the reference uint8\(40, 50, 3\)"):
        compare(LEVELS, LEVELS[:, 1:], definition=AS_IT_IS, stage="crop", backend="dali")
    with pytest.raises(ValueError, match="float32"):
        compare(LEVELS, LEVELS.astype(np.float32), definition=AS_IT_IS, stage="crop", backend="dali")
