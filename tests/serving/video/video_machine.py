"""The machine of the tests of video on a GPU, which is made of host memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from host_gpu import HostDevice, HostStream
from host_nvdec import HostNvdec

RELOADED = (
    "onestream.preprocess.backends.cvcuda",
    "onestream.preprocess.video.gpu.nvdec",
    "onestream.preprocess.video.gpu.stream_gpu",
    "onestream.serving.models",
    "onestream.serving.video.gpu",
    "onestream.serving.video.model",
    "onestream.serving.video.network_calls",
    "onestream.serving.video.sender",
)


class Machine(HostDevice):
    """A GPU that notes what is copied to the host, and knows what is allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated = self.streams = 0
        self.downloads: list[int] = []
        self.nvdec = HostNvdec()
        self.copies_fail = False

    def stream(self) -> HostStream:
        self.streams += 1
        return _Noting(self)

    def freed(self) -> bool:
        gc.collect()
        return self.allocated == 0


class _Noting(HostStream):
    device: Machine

    def allocate(self, shape: Any, dtype: Any) -> Any:
        array = super().allocate(shape, dtype)
        self.device.allocated += array.nbytes
        weakref.finalize(array.owner, self._freed, array.nbytes)
        return array

    def _freed(self, size: int) -> None:
        self.device.allocated -= size

    def download(self, source: Any, target: Any) -> None:
        if self.device.copies_fail:
            raise RuntimeError("no more memory")
        self.device.downloads.append(source.nbytes)
        super().download(source, target)
