"""Launches kernels on batches of pictures of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cuda.device import Device, Stream
from onestream.preprocess.cuda.resample_kernels import BLOCK, RESAMPLE_KERNELS, TILE
from onestream.preprocess.cuda.resize_kernels import KERNELS
from onestream.preprocess.cuda.source_kernels import WORK
from onestream.preprocess.cuda.staging import Staging

_NAMES = ("interpolate", "rectify", "look_up")
_TILES = {"resample": (TILE, TILE)}
"""Pixels that a block makes, (across, down), where it is more than one a thread."""


Works = Sequence[tuple[object, ...]] | npt.NDArray[np.void]
"""What a kernel does with each picture, in the order of its ``work``."""


class Work(NamedTuple):
    """What a kernel does with one picture; see ``source_kernels.WORK``."""

    source: int
    target: int
    rows: int
    columns: int
    source_pitch: int
    target_pitch: int
    height: int
    width: int
    channels: int
    to_bgr: bool = False
    columns_first: bool = False
    yuv: int = 0
    top: int = 0
    left: int = 0
    source_height: int = 0
    source_width: int = 0


def prepare_resize(device: Device) -> None:
    """Compile the kernels. Raises ``CannotCompile`` where that is not possible."""
    device.kernel(RESAMPLE_KERNELS, "resample")
    for name in _NAMES:
        device.kernel(KERNELS, name)


class PictureKernels:
    """Launches a kernel of a CUDA ``source`` on a batch of pictures, each with a ``work`` of its own, in one grid.

    Of each kernel the only argument of a picture is its ``work``, which has a ``height`` and a ``width``.
    """

    def __init__(
        self,
        stream: Stream,
        staging: Staging,
        *,
        source: str = KERNELS,
        names: Sequence[str] = _NAMES,
        work: np.dtype[np.void] = WORK,
    ) -> None:
        for name in names:
            stream.device.kernel(source, name)
        self._stream, self._staging, self._source = stream, staging, source
        self._works = stream.allocate((0,), work)

    def launch(self, steps: Sequence[tuple[str, Works]], *arguments: int | np.generic) -> None:
        """Queue kernels by name, one after the other, all with the same further arguments."""
        values = np.concatenate([np.asarray(works, self._works.dtype) for _, works in steps] or [np.empty(0)])
        if not len(values):
            return
        if len(values) > self._works.shape[0]:
            # What the stream still reads is freed in its order.
            self._works = self._stream.allocate((2 * len(values),), values.dtype)
        self._staging.upload(values, self._works)
        first = 0
        for name, works in steps:
            some = values[first : first + len(works)]
            tile = zip(("width", "height"), _TILES.get(name, BLOCK), strict=True)
            across, down = (-(-int(some[side].max()) // size) for side, size in tile)
            self._stream.launch(
                self._stream.device.kernel(self._source, name),
                (across, down, len(works)),
                BLOCK,
                (self._works.rows(first, first + len(works)).pointer, *arguments),
            )
            first += len(works)
