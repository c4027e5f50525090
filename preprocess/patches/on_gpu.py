"""Patches in the memory of a GPU: decoded, resized and written to rows on one stream.

Decoding and resizing are the backend *cvcuda*'s. What is no JPEG has the bits of ``Processor``; of JPEGs nvJPEG rounds
otherwise. It was **not run on a GPU**: NVRTC compiles the kernels, which ran by a C++ compiler, in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import DecodeOptions
from onestream.preprocess.cuda.device import DeviceArray, Stream, open_device
from onestream.preprocess.cuda.network_values import PatchRows
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, CannotCompile
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits
from onestream.preprocess.patches.processor import DType, value_table


@dataclass(frozen=True)
class PatchedOnGpu:
    """The patches of a batch.

    ``pixel_values``: (rows, \\*row) as of ``Patched``, bfloat16 as its bits in uint16. Other libraries read it by the
    CUDA Array Interface, without a copy; its content is there once the stream has passed. ``image_grid_thw`` and
    ``errors`` are as of ``Patched``, on the host.
    """

    pixel_values: DeviceArray
    image_grid_thw: npt.NDArray[np.int64]
    errors: dict[int, BadImage]


class GpuProcessor:
    """``Processor`` on a GPU, of encoded pictures, for one thread at a time, which enters the device.

    Without ``stream`` it opens the first GPU, and a stream there. ``max_batch_size`` pictures are decoded at once,
    ``threads`` are the decoder's on the CPU. Raises ``CannotCompile`` for a definition that does not end in rows of
    patches, or that cannot be executed exactly there, and ``BackendMissing`` without the extra ``gpu``.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        dtype: DType = "uint8",
        stream: Stream | None = None,
        max_batch_size: int = 8,
        threads: int = 1,
        decode: DecodeOptions | None = None,
        limits: Limits | None = None,
    ) -> None:
        patches = definition.patches
        if patches is None or patches.pads:
            raise CannotCompile("a GpuProcessor makes rows of patches without padding; this definition ends otherwise")
        from onestream.preprocess.backends.cvcuda import CvCuda

        self.stream = stream or open_device().stream()
        self._patches, self._most = patches, max_batch_size
        pixels = definition.pixels()
        self._backend = CvCuda(
            pixels, limits or Limits(), stream=self.stream, max_batch_size=max_batch_size, threads=threads,
            decode=decode or DecodeOptions(),
        )  # fmt: skip
        channels = pixels.output_spec.channels
        levels = np.arange(256, dtype=np.uint8)
        table = np.tile(levels, (channels, 1)) if dtype == "uint8" else value_table(definition, dtype)
        self._row_shape, self._dtype = patches.row_shape(channels), table.dtype
        self._rows = PatchRows(patches, table, stream=self.stream)

    def close(self) -> None:
        """Release the decoder."""
        self._backend.close()

    def __call__(self, pictures: Sequence[Encoded]) -> PatchedOnGpu:
        """Queue the patches of pictures, in order. Our code does not wait; the decoder does.

        The instance must live until the stream has passed (``stream.sync``).
        """
        canvases: list[DeviceArray] = []
        errors: dict[int, BadImage] = {}
        for first in range(0, len(pictures), self._most):
            queued = self._backend.enqueue(pictures[first : first + self._most])
            canvases += queued.samples
            errors |= {first + index: error for index, error in queued.bad.items()}
        patches = self._patches
        grids = [patches.grid((canvas.shape[0], canvas.shape[1])) for canvas in canvases]
        ends = [0, *accumulate(map(patches.count, grids))]
        values = self.stream.allocate((ends[-1], *self._row_shape), self._dtype)
        parts = [values.rows(first, end) for first, end in pairwise(ends)]
        self._rows.enqueue(canvases, parts)
        return PatchedOnGpu(values, np.array(grids, np.int64).reshape(-1, 3), dict(sorted(errors.items())))
