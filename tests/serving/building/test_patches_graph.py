"""The network of a pipeline that answers patches: its graph gives the rows that the definition states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from onestream.preprocess import Decode, Definition, Output, Patches
from onestream.serving.errors import BadPipeline
from onestream.serving.graph.no_network import of_patches
from onestream.serving.pipeline import Pipeline

PLANES = Definition(operations=[Decode(), Output(layout="NCHW", dtype="uint8")])


@pytest.mark.parametrize("rows", [{}, {"order": "raster", "flatten": False}, {"layout": "THWC"}], ids=str)
def test_rows(rows: dict[str, Any]) -> None:
    patches = Patches(patch=3, temporal=2, merge=2, **rows)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 12, 18, 3), np.uint8)
    values, grids = ReferenceEvaluator(of_patches(PLANES, patches)).run(None, {"planes": pixels.transpose(0, 3, 1, 2)})
    np.testing.assert_array_equal(values, np.stack([patches.rows(one) for one in pixels]), strict=True)
    assert grids.tolist() == [[1, 4, 6]] * 2


def test_padded_patches_are_refused() -> None:
    operations = [
        {"op": "decode"},
        {"op": "resize", "mode": "patches", "max_patches": 9, "multiple_of": 4},
        {"op": "patches", "patch": 4, "merge": 1, "pad_to": 9},
    ]
    fields = {"name": "padded", "network": "none", "preprocess": {"operations": operations}}
    with pytest.raises(BadPipeline, match=r"with layout image or pad_to, which onestream.*makes in process"):
        Pipeline.from_fields(Path("padded.yaml"), fields | {"postprocess": {"kind": "raw"}})
