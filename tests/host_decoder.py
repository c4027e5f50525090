"""The decoder of images for a GPU made of host memory: nvImageCodec's on the CPU, its images shared with the "GPU"."""

from __future__ import annotations

from typing import Any

import numpy as np

from onestream.preprocess.backends.base import DecodeOptions
from onestream.preprocess.backends.nvimgcodec import ImageDecoder
from onestream.preprocess.cuda.device import DeviceArray


class HostImageDecoder:
    """``ImageDecoder`` without a GPU."""

    def __init__(self, stream: Any, *, options: DecodeOptions, threads: int) -> None:
        self._stream, self._decoder = stream, ImageDecoder(None, options=options, threads=threads)

    @property
    def second_chances(self) -> int:
        return self._decoder.second_chances

    def decode(self, images: Any) -> list[DeviceArray | None]:
        return [None if image is None else self._shared(image) for image in self._decoder.decode(images)]

    def _shared(self, image: Any) -> DeviceArray:
        pixels = np.asarray(image)
        return DeviceArray(pixels.ctypes.data, pixels.shape, pixels.dtype, self._stream.handle, pixels)
