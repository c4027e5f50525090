"""Pictures for ``detectors.level_detector`` and its cascades, and the answers of their stages on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import detectors
import numpy as np

from onestream.preprocess import Limits, compile_from_picture
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.models.stage_runners import OwnNetworks, Samples
from onestream.serving.models.stages import OpenStage, Stages


def drawn(size_hw: tuple[int, int], seed: int, *, share: float = 0.2) -> np.ndarray:
    """A picture in which this share of the detector's cells has an object, in noise that differs."""
    chosen = np.random.default_rng(seed)
    pixels = chosen.integers(0, 100, (*size_hw, 3)).astype(np.uint8)
    rows, columns = (np.arange(side) * detectors.CELLS // side for side in size_hw)
    cells = chosen.random((detectors.CELLS, detectors.CELLS)) < share
    pixels[cells[rows][:, columns], 0] += 155
    return pixels


def by_the_reference(stages: Sequence[OpenStage], networks: Mapping[str, Path | bytes], picture: np.ndarray) -> Any:
    """The answer of the same stages on the CPU, from the reference's samples."""

    def samples(stage: OpenStage) -> Samples[Any]:
        run = compile_from_picture(stage.definition.pixels()).run
        return lambda pictures, quads: [run(pictures[0])] if quads is None else run(pictures[0], quads[0])

    engines = {name: OnnxRuntimeEngine(model, threads=1) for name, model in networks.items()}
    return Stages(stages, OwnNetworks(engines), samples, limits=Limits()).run(picture)


def assert_same(answer: Any, expected: Mapping[str, Any], *, most: float = 1e-4) -> None:
    """By default floats may differ as the network's sums do, which depend on the size of a batch."""
    assert set(answer) == set(expected)
    for name, value in expected.items():
        assert answer[name].shape == value.shape, name
        if value.dtype.kind == "f":
            np.testing.assert_allclose(answer[name], value, atol=most, err_msg=name)
        else:
            np.testing.assert_array_equal(answer[name], value, err_msg=name)
