"""A stream of a GPU of host memory that counts what is asked of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from host_gpu import HostDevice, HostStream

from onestream.preprocess.cuda.device import DeviceArray


class CountingStream(HostStream):
    """Launches by their grids, copies and memory by their bytes."""

    def __init__(self) -> None:
        super().__init__(HostDevice())
        self.launches: list[tuple[int, ...]] = []
        self.allocated: list[int] = []
        self.pinned_bytes: list[int] = []
        self.uploaded: list[int] = []
        self.downloaded: list[int] = []

    def launch(self, kernel: Any, grid: tuple[int, ...], block: tuple[int, int], arguments: Any) -> None:
        self.launches.append(grid)
        super().launch(kernel, grid, block, arguments)

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        found = super().allocate(shape, dtype)
        self.allocated.append(found.nbytes)
        return found

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        found = super().pinned(shape, dtype)
        self.pinned_bytes.append(found.nbytes)
        return found

    def upload(self, source: np.ndarray, target: DeviceArray) -> None:
        self.uploaded.append(source.nbytes)
        super().upload(source, target)

    def download(self, source: DeviceArray, target: np.ndarray) -> None:
        self.downloaded.append(source.nbytes)
        super().download(source, target)

    def forget(self) -> None:
        for counted in (self.launches, self.allocated, self.pinned_bytes, self.uploaded, self.downloaded):
            counted.clear()
