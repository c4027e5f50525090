"""Makes batches of lines of text: a picture is decoded once for all of its lines in a window of batches."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onestream.preprocess.backends.base import Sample, network_layout
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.moves import Pad
from onestream.preprocess.training.base_loader import Bad, WorkerBatch
from onestream.preprocess.training.makers import MakerThreads
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.text.files import TextLine
from onestream.preprocess.training.text.maker import LineMaker
from onestream.preprocess.training.workers import Draw

Widths = npt.NDArray[np.int64]
_Row = tuple[int, npt.NDArray[Any]]
"""A line's index, and the row of a batch to which its sample goes."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A batch whose pictures are being made. Each task gives, by index, why lines are bad."""

    slots: list[Slot]
    images: torch.Tensor
    tasks: list[Future[dict[int, Bad]]]

    def made(self) -> WorkerBatch:
        """The batch, once all of its pictures are made."""
        bad: dict[int, Bad] = {}
        for task in self.tasks:
            bad.update(task.result())
        by_place = {place: bad[slot.index] for place, slot in enumerate(self.slots) if slot.index in bad}
        return WorkerBatch(self.images, self.slots, by_place)


class Rows:
    """The rows of a batch of a definition's lines: samples at the left, the value of the definition's pad beside them.

    Without a pad in the definition that is level 0.
    """

    def __init__(self, definition: Definition) -> None:
        spec = definition.output_spec
        self._planar, self._channels, self._height = spec.layout == "CHW", spec.channels, spec.size_hw[0]
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        levels = [operation.value for operation in definition.geometry if isinstance(operation, Pad)]
        pixel = np.full((1, 1, spec.channels), levels[-1] if levels else 0, np.uint8)
        self._blank = network_layout(definition, pixel)

    def empty(self, count: int, width: int, *, pin_memory: bool) -> torch.Tensor:
        """A batch to be filled."""
        assert self._height is not None
        sides = (self._height, width)
        shape = (count, self._channels, *sides) if self._planar else (count, *sides, self._channels)
        return torch.empty(shape, dtype=self._dtype, pin_memory=pin_memory)

    def put(self, sample: Sample, row: npt.NDArray[Any]) -> None:
        """Fill a row with a sample, and the rest of it."""
        if self._planar:
            width = sample.shape[2]
            row[:, :, :width], row[:, :, width:] = sample, self._blank
        else:
            width = sample.shape[1]
            row[:, :width], row[:, width:] = sample, self._blank

    def cut(self, images: torch.Tensor, width: int) -> torch.Tensor:
        """The same batch without the columns from ``width`` on."""
        return images[..., :width] if self._planar else images[:, :, :width]


class LineWorkers:
    """Threads that make windows of batches, one ahead; every picture of a window is one task.

    ``make`` gives each thread a maker of its own. ``widths`` int64 (lines,) are those of the lines' samples, in pixels.
    ``draw`` gives the variation of each line, if lines vary.
    """

    def __init__(
        self,
        make: Callable[[], LineMaker],
        lines: Sequence[TextLine],
        widths: Widths,
        rows: Rows,
        *,
        threads: int,
        pin_memory: bool,
        draw: Draw | None = None,
    ) -> None:
        self._draw = draw
        self._lines, self._widths, self._rows, self._pin_memory = lines, widths, rows, pin_memory
        self._threads = MakerThreads(make, threads=threads, name="onestream-lines")

    def run(self, windows: Iterable[list[list[Slot]]], epoch: int) -> Iterator[WorkerBatch]:
        """The batches of an epoch's windows, in order. Closing the iterator ends it."""
        todo = iter(windows)
        running: deque[list[_Begun]] = deque()
        try:
            while True:
                while len(running) < 2 and (window := next(todo, None)) is not None:
                    running.append(self._start(window, epoch))
                if not running:
                    return
                while running[0]:
                    made = running[0][0].made()
                    del running[0][0]
                    yield made
                running.popleft()
        finally:
            for begun in running:
                for batch in begun:
                    for task in batch.tasks:
                        task.cancel()

    def close(self) -> None:
        """Wait for the pictures that are being made, and release everything."""
        self._threads.close()

    def _start(self, window: list[list[Slot]], epoch: int) -> list[_Begun]:
        by_picture: dict[Path, list[_Row]] = defaultdict(list)
        batches: list[tuple[list[Slot], torch.Tensor]] = []
        for slots in window:
            indices = [slot.index for slot in slots]
            images = self._rows.empty(len(slots), int(self._widths[indices].max()), pin_memory=self._pin_memory)
            batches.append((slots, images))
            for index, row in zip(indices, images.numpy(), strict=True):
                by_picture[self._lines[index].path].append((index, row))
        tasks = {
            path: self._threads.submit(partial(self._fill, path, rows, epoch)) for path, rows in by_picture.items()
        }
        return [
            _Begun(slots, images, [tasks[path] for path in {self._lines[slot.index].path for slot in slots}])
            for slots, images in batches
        ]

    def _fill(self, path: Path, rows: list[_Row], epoch: int, maker: LineMaker) -> dict[int, Bad]:
        bad: dict[int, Bad] = {}
        good: list[_Row] = []
        for index, row in rows:
            if self._lines[index].problem:
                bad[index] = BadSample(self._lines[index].problem)
            else:
                good.append((index, row))
        draw = self._draw
        varies = None if draw is None else [partial(draw, epoch, index) for index, _ in good]
        made = maker.make(path, [self._lines[index] for index, _ in good], varies) if good else []
        for (index, row), sample in zip(good, made, strict=True):
            if isinstance(sample, BadImage | BadSample):
                bad[index] = sample
            else:
                self._rows.put(sample, row)
        for index, row in rows:
            if index in bad:
                # Never what happened to be in the memory, even if nobody looks.
                row[...] = 0
        return bad
