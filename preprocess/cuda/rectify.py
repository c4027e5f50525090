"""The perspective transform of regions on a GPU: every bit is the reference's, all regions of a batch in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.rectify_weights import step_weights
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.picture_kernels import PictureKernels, Work
from onestream.preprocess.cuda.resize_kernels import TRANSFORM
from onestream.preprocess.cuda.staging import Staging

_REPEATED = -1


@dataclass(frozen=True, slots=True)
class ToRectify:
    """A picture, (height, width, channels) uint8 interleaved, and what a transform takes from it.

    ``transform`` is one of ``projection.homographies``, float64 (3, 3), for a rectangle of the size of ``target``,
    which is (height, width, channels) uint8. Beyond the picture is the level ``fill``, without it the border repeated.
    """

    source: DeviceArray
    transform: npt.NDArray[np.float64]
    target: DeviceArray
    fill: int | None = None


class Rectify:
    """Rectifies regions of pictures on one stream; belongs to its thread. Nothing waits.

    ``channels``: 3, written in reverse order ``to_bgr``, or 1.
    """

    def __init__(self, stream: Stream, *, channels: int = 3, to_bgr: bool = False) -> None:
        self._stream, self._staging = stream, Staging(stream)
        self._channels, self._to_bgr = channels, to_bgr
        self._kernels = PictureKernels(stream, self._staging)
        weights = step_weights()
        self._weights = stream.allocate(weights.shape, weights.dtype)
        self._staging.upload(weights, self._weights)
        self._transforms = stream.allocate((0,), TRANSFORM)

    def enqueue(self, items: Sequence[ToRectify]) -> None:
        """Queue a batch. The sources must stay until the stream has passed.

        Raises ``ValueError`` for a source with other channels, or that is not interleaved.
        """
        for item in items:
            if item.source.shape[2:] != (self._channels,) or item.source.byte_strides[1:] != (self._channels, 1):
                raise ValueError(f"got pixels of {item.source.shape}, expected {self._channels} channels, interleaved")
        transforms = np.array(
            [
                (item.transform.reshape(9), *item.source.shape[:2], _REPEATED if item.fill is None else item.fill)
                for item in items
            ],
            TRANSFORM,
        )
        if len(items) > self._transforms.shape[0]:
            # What the stream still reads is freed in its order.
            self._transforms = self._stream.allocate((2 * len(items),), TRANSFORM)
        if items:
            self._staging.upload(transforms, self._transforms)
        works = [
            Work(
                item.source.pointer, item.target.pointer, self._transforms.pointer + at * TRANSFORM.itemsize,
                self._weights.pointer, item.source.byte_strides[0], item.target.byte_strides[0],
                item.target.shape[0], item.target.shape[1], self._channels, self._to_bgr,
            )
            for at, item in enumerate(items)
        ]  # fmt: skip
        self._kernels.launch([("rectify", works)])
