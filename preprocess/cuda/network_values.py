"""From uint8 pixels to a network's values on a GPU, by a table of the 256 levels: the reference's own values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.picture_kernels import PictureKernels, Work
from onestream.preprocess.cuda.staging import Staging


class NetworkValues:
    """Looks up pixels in ``table``, (channels, 256) of 1, 2 or 4 bytes a value; ``planar`` puts channels first."""

    def __init__(self, table: npt.NDArray[np.generic], *, planar: bool, stream: Stream) -> None:
        staging = Staging(stream)
        self._kernels, self._planar = PictureKernels(stream, staging), planar
        self._table = stream.allocate(table.shape, table.dtype)
        staging.upload(table, self._table)

    def enqueue(self, pixels: Sequence[DeviceArray], samples: Sequence[DeviceArray]) -> None:
        """Queue it for pictures (height, width, channels) and contiguous samples of the same sizes."""
        works = []
        for picture, sample in zip(pixels, samples, strict=True):
            height, width, channels = picture.shape
            works.append(
                Work(picture.pointer, sample.pointer, 0, 0, picture.byte_strides[0], 0, height, width, channels)
            )
        self._kernels.launch(
            [("look_up", works)],
            self._table.pointer,
            np.int32(self._table.dtype.itemsize),
            np.int32(self._planar),
        )
