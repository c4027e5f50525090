"""The threads that make clips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from onestream.preprocess.errors import BadSample
from onestream.preprocess.training.base_loader import WorkerBatch
from onestream.preprocess.training.makers import MakerThreads
from onestream.preprocess.training.order import Slot
from onestream.preprocess.video.clips.maker import ClipMaker


class ClipWorkers:
    """Makes batches of clips, some of them ahead; every clip is one task.

    ``make`` gives each thread a maker of its own. ``clip_shape`` is (frames, …).
    """

    def __init__(
        self,
        make: Callable[[], ClipMaker],
        paths: Sequence[Path],
        *,
        clip_shape: Sequence[int],
        dtype: torch.dtype,
        threads: int,
        prefetch: int,
    ) -> None:
        self._paths, self._prefetch = paths, prefetch
        self._clip_shape, self._dtype = tuple(clip_shape), dtype
        self._threads = MakerThreads(make, threads=threads, name="onestream-clips")

    def run(self, batches: list[list[Slot]]) -> Iterator[WorkerBatch]:
        """The batches, in order. Closing the iterator ends the epoch."""
        running: deque[tuple[list[Slot], torch.Tensor, list[Future[BadSample | None]]]] = deque()
        todo = iter(batches)
        try:
            while True:
                while len(running) <= self._prefetch and (slots := next(todo, None)) is not None:
                    running.append(self._start(slots))
                if not running:
                    return
                slots, clips, tasks = running[0]
                results = [task.result() for task in tasks]
                running.popleft()
                yield WorkerBatch(clips, slots, {place: bad for place, bad in enumerate(results) if bad is not None})
        finally:
            for _, _, tasks in running:
                for task in tasks:
                    task.cancel()

    def close(self) -> None:
        """Wait for the clips that are being made, and release everything."""
        self._threads.close()

    def _start(self, slots: list[Slot]) -> tuple[list[Slot], torch.Tensor, list[Future[BadSample | None]]]:
        clips = torch.empty((len(slots), *self._clip_shape), dtype=self._dtype)
        shared = clips.numpy()
        tasks = [partial(self._fill, shared[n], slot.index) for n, slot in enumerate(slots)]
        return slots, clips, [self._threads.submit(task) for task in tasks]

    def _fill(self, out: npt.NDArray[Any], index: int, maker: ClipMaker) -> BadSample | None:
        try:
            maker.make(self._paths[index], out=out)
        except BadSample as error:
            # Never what happened to be in the memory, even if nobody looks.
            out[...] = 0
            return error
        return None
