"""A pytest plugin that runs the GPU suite in host memory: it tests the suite, not a GPU.

PYTHONPATH=tests python -m pytest -p gpu_suite_on_host tests/gpu
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import host_gpu
import host_nvdec
import numpy as np
import pytest
from cuda.bindings import driver

host_nvdec.install()
host_gpu.install()

from onestream.preprocess import BadImage  # noqa: E402 (after the GPU was replaced)
from onestream.preprocess.backends import dali  # noqa: E402

_ON_CPU = dali.Dali


class _DaliOnHost(_ON_CPU):  # type: ignore[misc, valid-type]
    """DALI on the CPU in the place of DALI on a GPU."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "device": "cpu"})

    def run_on_device(self, images: Sequence[Any], varies: Any = None) -> tuple[Any, dict[int, BadImage]]:
        results = self.run(images, varies)
        bad = {index: one for index, one in enumerate(results) if isinstance(one, BadImage)}
        good = [one for one in results if not isinstance(one, BadImage)]
        if not good:
            return None, bad
        pixels = np.ascontiguousarray(np.stack(good))
        return SimpleNamespace(pixels=pixels, data_ptr=lambda: pixels.ctypes.data), bad


dali.Dali = _DaliOnHost
driver.cuMemGetInfo = lambda: (0, 2**34, 2**36)
_BATCHES = 20
"""Of random sizes, where a GPU runs thousands to see its memory grow."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nothing is skipped for want of a GPU."""
    for item in items:
        item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]
        if hasattr(item.module, "BATCHES"):
            item.module.BATCHES = _BATCHES
