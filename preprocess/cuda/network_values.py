"""From uint8 pixels to a network's values on a GPU, by a table of the 256 levels: the reference's own values.

Rows of patches were **not run on a GPU**: their kernel ran by a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.picture_kernels import PictureKernels, Work
from onestream.preprocess.cuda.staging import Staging
from onestream.preprocess.operations import Patches


class NetworkValues:
    """Looks up pixels in ``table``, (channels, 256) of 1, 2 or 4 bytes a value; ``planar`` puts channels first."""

    def __init__(self, table: npt.NDArray[np.generic], *, planar: bool, stream: Stream) -> None:
        staging = Staging(stream)
        self._kernels, self._planar = PictureKernels(stream, staging), planar
        self._table = stream.allocate(table.shape, table.dtype)
        staging.upload(table, self._table)

    def enqueue(self, pixels: Sequence[DeviceArray], samples: Sequence[DeviceArray]) -> None:
        """Queue it for pictures (height, width, channels) and contiguous samples of the same sizes."""
        self._kernels.launch(
            [("look_up", _works(pixels, samples))],
            self._table.pointer,
            np.int32(self._table.dtype.itemsize),
            np.int32(self._planar),
        )


class PatchRows:
    """Writes the rows that ``patches`` states, of values in ``table``, as of ``NetworkValues``."""

    def __init__(self, patches: Patches, table: npt.NDArray[np.generic], *, stream: Stream) -> None:
        staging = Staging(stream)
        self._kernels, self._patches = PictureKernels(stream, staging, names=["write_rows"]), patches
        self._table = stream.allocate(table.shape, table.dtype)
        staging.upload(table, self._table)

    def enqueue(self, pixels: Sequence[DeviceArray], rows: Sequence[DeviceArray]) -> None:
        """Queue it for pictures (height, width, channels), whole in patches, and the contiguous rows of each."""
        patches = self._patches
        numbers = (patches.patch, patches.temporal, patches.square, patches.layout == "THWC")
        self._kernels.launch(
            [("write_rows", _works(pixels, rows))],
            self._table.pointer,
            np.int32(self._table.dtype.itemsize),
            *map(np.int32, numbers),
        )


def _works(pixels: Sequence[DeviceArray], targets: Sequence[DeviceArray]) -> list[Work]:
    works = []
    for picture, target in zip(pixels, targets, strict=True):
        height, width, channels = picture.shape
        works.append(Work(picture.pointer, target.pointer, 0, 0, picture.byte_strides[0], 0, height, width, channels))
    return works
