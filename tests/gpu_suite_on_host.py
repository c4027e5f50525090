"""A pytest plugin that runs the GPU suite in host memory: it tests the suite, not a GPU.

PYTHONPATH=tests python -m pytest -p gpu_suite_on_host tests/gpu
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpu_engines
import host_cupti
import host_gpu
import host_nvdec
import numpy as np
import pytest
from host_work import MEMORY, Gpu, Place

host_cupti.install()
host_nvdec.install()
host_gpu.install()

from onestream.preprocess import BadImage  # noqa: E402 (after the GPU was replaced)
from onestream.preprocess.backends import dali, nvimgcodec  # noqa: E402


def checkered(levels: Any) -> Any:
    """Every other sample a level above, the others a level below: roundings that no average shows, as nvJPEG's."""
    height, width, _ = levels.shape
    return levels + (2 * (np.add.outer(np.arange(height), np.arange(width)) % 2) - 1)[:, :, None].astype(levels.dtype)


nvimgcodec.nvimgcodec.rounded = checkered

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
        return _DaliTensor(np.stack(good)), bad


class _DaliTensor:
    """Pixels on the GPU, which DALI waited for; the memory is used again when nobody holds the tensor."""

    def __init__(self, pixels: Any) -> None:
        queue = Gpu().queue()
        self._memory = queue.allocate(pixels.nbytes, ordered=False)
        place = Place(self._memory.pointer, pixels.shape, pixels.dtype)
        queue.put(lambda: np.copyto(place.values(), pixels), name="DALI")
        queue.wait()

    def data_ptr(self) -> int:
        return self._memory.pointer


dali.Dali = _DaliOnHost


SMALL = {"BATCHES": 20, "DAMAGED": 30, "OVERLAPPING": 12}
"""At most so many of what a module of the suite counts in a constant of this name."""


def free_mib(device: Any) -> float:
    """In the place of the driver's answer, from an arbitrary zero."""
    device.core.sync()
    return -MEMORY.alive_bytes / 2**20


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The suite's conftest takes this for a machine with a GPU that runs every engine; it counts less."""
    gpu_engines.why_not = lambda _name: None
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "driver_visible"):
            plugin.driver_visible = lambda: True  # type: ignore[attr-defined]
    for item in items:
        module: Any = item.getparent(pytest.Module).obj  # type: ignore[union-attr]
        if hasattr(module, "free_mib"):
            module.free_mib = free_mib
        for name in SMALL.keys() & vars(module):
            setattr(module, name, min(SMALL[name], getattr(module, name)))
