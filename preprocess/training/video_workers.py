"""The threads that make clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from onestream.preprocess.errors import BadSample
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.workers import Begun, Found, ThreadedWorkers
from onestream.preprocess.variation import AS_FILMED, Timing, Vary
from onestream.preprocess.video.clips.maker import ClipMaker

DrawClip = Callable[[int, int], tuple[Vary, Timing]]
"""Draws what varies the frames of an epoch and a sample's index, and when they are taken."""


class ClipWorkers(ThreadedWorkers[ClipMaker]):
    """Makes batches of clips, some of them ahead; every clip is one task.

    ``make`` gives each thread a maker of its own. ``shape`` is a clip's, (frames, …). ``draw`` is None where clips
    do not vary.
    """

    def __init__(
        self,
        make: Callable[[], ClipMaker],
        paths: Sequence[Path],
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        pin_memory: bool,
        draw: DrawClip | None,
        threads: int,
        prefetch: int,
    ) -> None:
        super().__init__(make, threads=threads, prefetch=prefetch, name="onestream-clips")
        self._paths, self._draw = paths, draw
        self._empty = partial(torch.empty, dtype=dtype, pin_memory=pin_memory)
        self._shape = shape

    def _start(self, slots: list[Slot], epoch: int) -> Begun:
        clips = self._empty((len(slots), *self._shape))
        shared = clips.numpy()
        tasks = [partial(self._fill, shared[place], place, slot.index, epoch) for place, slot in enumerate(slots)]
        return slots, clips, [self._threads.submit(task) for task in tasks]

    def _fill(self, out: npt.NDArray[Any], place: int, index: int, epoch: int, maker: ClipMaker) -> Found:
        vary, timing = (None, AS_FILMED) if self._draw is None else self._draw(epoch, index)
        try:
            maker.make(self._paths[index], out=out, vary=vary, timing=timing)
        except BadSample as error:
            # Never what happened to be in the memory, even if nobody looks.
            out[...] = 0
            return None, {place: error}, {}
        return None, {}, {}
