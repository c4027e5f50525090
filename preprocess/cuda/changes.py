"""Changes of levels on a GPU: every bit is the reference's, a batch of canvases step by step in few launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.preprocess.changes import (
    BY_LEVEL,
    AnyChange,
    AutoContrast,
    ByLevel,
    Contrast,
    Equalize,
    Erase,
    Hue,
    Linear,
    Saturation,
    Sharpness,
    level_map,
)
from onestream.preprocess.cuda.change_kernels import CHANGE, CHANGE_KERNELS
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.picture_kernels import PictureKernels
from onestream.preprocess.cuda.staging import Staging
from onestream.preprocess.errors import CannotCompile

_BY_COUNTS = {Contrast: "contrast_table", AutoContrast: "autocontrast_table", Equalize: "equalize_table"}
"""What maps each level by how often the picture has which, and the kernel that makes the table."""
_KERNELS = (
    "recolor", "by_table", "saturate", "turn_hue", "erase", "keep", "sharpen", "count_levels", *_BY_COUNTS.values(),
)  # fmt: skip
_LEVELS = 256


class _Work(NamedTuple):
    """What a kernel does with one canvas; see ``change_kernels.CHANGE``."""

    pixels: int
    before: int
    counts: int
    table: int
    pitch: int
    height: int
    width: int
    factors: npt.NDArray[np.float32]
    fill: int
    channels: int
    bgr: bool


_Step = tuple[str, _Work]


class LevelChanges:
    """Changes the levels of canvases on one stream; belongs to its thread. Nothing waits.

    ``bgr``: whether the first of three channels is blue.
    """

    def __init__(self, stream: Stream, *, bgr: bool) -> None:
        self._stream, self._staging, self._bgr = stream, Staging(stream), bgr
        self._kernels = PictureKernels(stream, self._staging, source=CHANGE_KERNELS, names=_KERNELS, work=CHANGE)

    def enqueue(self, items: Sequence[tuple[DeviceArray, Sequence[AnyChange]]]) -> None:
        """Queue changes of canvases, (height, width, channels) uint8 interleaved, each one after the other.

        Raises ``CannotCompile`` for a change that is none of ``onestream.preprocess.changes.CHANGES_ON_GPU``.
        """
        every = [(canvas, change) for canvas, changes in items for change in changes]
        if not every:
            return
        known = self._uploaded([(canvas, change) for canvas, change in every if isinstance(change, BY_LEVEL)])
        counted = [canvas.shape[2] for canvas, change in every if type(change) in _BY_COUNTS]
        # Of luma, too; the table has a row less.
        counts = self._stream.allocate((len(counted), max(counted, default=0) + 1, _LEVELS), np.uint32)
        self._stream.fill(counts, 0)
        made = self._stream.allocate(counts.shape, np.uint8)
        tables = _Tables(iter(known), iter([(counts.at(row), made.at(row)) for row in range(len(counted))]), [])
        steps = [
            [step for change in changes for step in self._steps(canvas, change, tables)] for canvas, changes in items
        ]
        self._kernels.launch(list(_in_turns(steps)))

    def _uploaded(self, changes: Sequence[tuple[DeviceArray, ByLevel]]) -> list[DeviceArray]:
        """The tables of changes that map each level by itself."""
        if not changes:
            return []
        rows = np.stack([level_map(change) for _, change in changes])
        values = np.repeat(rows[:, None], max(canvas.shape[2] for canvas, _ in changes), axis=1)
        there = self._stream.allocate(values.shape, np.uint8)
        self._staging.upload(values, there)
        return [there.at(row) for row in range(len(changes))]

    def _steps(self, canvas: DeviceArray, change: AnyChange, tables: _Tables) -> list[_Step]:
        work = self._work(canvas)
        if isinstance(change, Linear):
            factors = np.zeros(12, np.float32)
            factors[: change.array.size] = change.array.reshape(-1)
            return [("recolor", work._replace(factors=factors))]
        if isinstance(change, BY_LEVEL):
            return [("by_table", work._replace(table=next(tables.known).pointer))]
        if isinstance(change, Erase):
            return self._erasure(canvas, change)
        if isinstance(change, Hue):
            return [("turn_hue", work._replace(fill=change.steps))] if work.channels == 3 else []
        work = work._replace(factors=np.full(12, getattr(change, "factor", 0), np.float32))
        if isinstance(change, Saturation):
            return [("saturate", work)] if work.channels == 3 else []
        if isinstance(change, Sharpness):
            before = self._stream.allocate(canvas.shape, np.uint8)
            tables.kept.append(before)
            work = work._replace(before=before.pointer)
            return [("keep", work), ("sharpen", work)]
        if type(change) not in _BY_COUNTS:
            raise CannotCompile(f"cvcuda on a GPU lacks {change.op}; device='cpu' can")
        counts, table = next(tables.made)
        work = work._replace(counts=counts.pointer, table=table.pointer)
        entries = work._replace(height=work.channels, width=_LEVELS)
        return [("count_levels", work), (_BY_COUNTS[type(change)], entries), ("by_table", work)]

    def _erasure(self, canvas: DeviceArray, change: Erase) -> list[_Step]:
        rows, columns = (
            max(0, min(first + size, side) - first)
            for first, size, side in zip(
                (change.top, change.left), (change.height, change.width), canvas.shape, strict=False
            )
        )
        if not rows or not columns:
            return []
        red, green, blue = (change.fill,) * 3 if isinstance(change.fill, int) else change.fill
        work = self._work(canvas.window(change.top, change.left, rows, columns))
        return [("erase", work._replace(fill=red | green << 8 | blue << 16))]

    def _work(self, pixels: DeviceArray) -> _Work:
        height, width, channels = pixels.shape
        pitch = pixels.byte_strides[0]
        return _Work(pixels.pointer, 0, 0, 0, pitch, height, width, np.zeros(12, np.float32), 0, channels, self._bgr)


class _Tables(NamedTuple):
    """Memory of a batch's changes, which must stay until they are queued.

    ``known`` are the tables that were uploaded, ``made`` counts and tables to be filled, in the order of the changes;
    ``kept`` copies of canvases.
    """

    known: Iterator[DeviceArray]
    made: Iterator[tuple[DeviceArray, DeviceArray]]
    kept: list[DeviceArray]


def _in_turns(steps: Sequence[Sequence[_Step]]) -> Iterator[tuple[str, list[_Work]]]:
    """The first step of each canvas, kernel by kernel, then the second of each, and so on."""
    for turn in range(max(map(len, steps), default=0)):
        alike: dict[str, list[_Work]] = {}
        for some in steps:
            if turn < len(some):
                kernel, work = some[turn]
                alike.setdefault(kernel, []).append(work)
        yield from alike.items()
