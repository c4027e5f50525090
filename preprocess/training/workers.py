"""Workers that make batches: threads with one compiled definition each, or processes of a PyTorch ``DataLoader``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from onestream.preprocess.backends.base import BackendName, Device
from onestream.preprocess.cuda.device import DeviceArray
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.base_loader import Bad, Made, Seen, SeenPart, WorkerBatch, bad_of
from onestream.preprocess.training.collages import CollageMaker, Mixing
from onestream.preprocess.training.makers import MakerT, MakerThreads
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.sources.cache import compile_for
from onestream.preprocess.training.sources.samples import Pictures
from onestream.preprocess.variation import Variation, Vary, given

Draw = Callable[[int, int, tuple[int, int]], Variation]
"""Draws the variation of an epoch, a sample's index and an image's (height, width)."""
See = Callable[[int, int, tuple[int, int]], tuple[SeenPart, Variation | None]]
"""Says of an epoch, a sample's index and an image's (height, width) what is seen of the image, and the variation that
was drawn for that, if any. Raises ``OSError``, ``BadImage`` or ``BadSample`` where the sample cannot be used."""


@dataclass(frozen=True, slots=True)
class Read:
    """The files of samples that could be read, what varies each, their places among all, and why the others are bad.

    ``seen`` says by place what is seen of an image, if that was asked for.
    """

    images: list[Encoded]
    varies: list[Vary] | None
    places: list[int]
    bad: dict[int, Bad]
    seen: dict[int, Seen]


class Maker(Protocol):
    """Makes samples of a dataset. Not thread-safe."""

    def make(self, slots: Sequence[Slot], epoch: int) -> Made:
        """The samples of a batch, or why they are bad."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything that a worker needs to make batches."""

    definition: Definition
    samples: Pictures
    backend: BackendName
    device: Device
    limits: Limits
    batch_size: int
    vary: Draw | None
    pin_memory: bool
    see: See | None = None
    mixing: Mixing | None = None

    def maker(self, max_batch_size: int, threads: int) -> Maker:
        """What makes the samples of one worker."""
        if self.mixing is not None:
            return CollageMaker(
                self.definition,
                self.samples,
                self.mixing,
                backend=self.backend,
                device=self.device,
                limits=self.limits,
                max_batch_size=max_batch_size,
            )
        return PictureMaker(self, max_batch_size, threads)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample, of which no side depends on the image."""
        return tuple(side for side in self.definition.output_spec.shape if side is not None)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the samples."""
        dtype: torch.dtype = getattr(torch, self.definition.output_spec.dtype)
        return dtype

    def empty(self, count: int) -> torch.Tensor:
        """A batch to be filled."""
        return torch.empty((count, *self.sample_shape), dtype=self.dtype, pin_memory=self.pin_memory)


class PictureMaker:
    """Makes each sample of its own picture, whose files ``threads`` threads read."""

    def __init__(self, config: WorkerConfig, max_batch_size: int, threads: int) -> None:
        self._config = config
        self._compiled = compile_for(
            config.samples,
            config.definition,
            backend=config.backend,
            device=config.device,
            limits=config.limits,
            max_batch_size=max_batch_size,
            threads=threads,
            varied=config.vary is not None,
        )
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="onestream-loader") if threads > 1 else None

    def make(self, slots: Sequence[Slot], epoch: int) -> Made:
        """See ``Maker.make``."""
        read = self._read(slots, epoch)
        results = iter(self._compiled.run(read.images, read.varies))
        return Made([read.bad[place] if place in read.bad else next(results) for place in range(len(slots))], read.seen)

    def make_on_device(self, slots: Sequence[Slot], epoch: int) -> tuple[torch.Tensor, dict[int, Bad], dict[int, Seen]]:
        """A batch on the GPU, by place why samples are bad, and what is seen in the others."""
        compiled: Any = self._compiled
        read = self._read(slots, epoch)
        made, refused = compiled.run_on_device(read.images, read.varies)
        bad: dict[int, Bad] = {**read.bad, **{read.places[index]: error for index, error in refused.items()}}
        kept = [place for place in range(len(slots)) if place not in bad]
        images = torch.zeros((len(slots), *self._config.sample_shape), dtype=self._config.dtype, device="cuda")
        if kept:
            # Of kernels of ours memory with a CUDA Array Interface, of DALI a tensor with DLPack.
            is_ours = isinstance(made, DeviceArray)
            images[kept] = torch.as_tensor(made, device="cuda") if is_ours else torch.from_dlpack(made)
            # The next call reuses the memory that is copied from.
            torch.cuda.current_stream().synchronize()
        return images, bad, read.seen

    def close(self) -> None:
        """See ``Maker.close``."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._compiled.close()

    def _read(self, slots: Sequence[Slot], epoch: int) -> Read:
        """Read the files of samples."""
        config = self._config
        images: list[Encoded] = []
        varies: list[Vary] = []
        bad: dict[int, Bad] = {}
        seen: dict[int, Seen] = {}
        found = (map if self._pool is None else self._pool.map)(partial(self._one, epoch), slots)
        for place, one in enumerate(found):
            if isinstance(one, Bad):
                bad[place] = one
                continue
            image, vary, part = one
            images.append(image)
            if vary is not None:
                varies.append(vary)
            if part is not None:
                seen[place] = (part,)
        places = [place for place in range(len(slots)) if place not in bad]
        return Read(images, None if config.vary is None else varies, places, bad, seen)

    def _one(self, epoch: int, slot: Slot) -> tuple[Encoded, Vary | None, SeenPart | None] | Bad:
        """The file of a sample, what varies its picture and what is seen of it, or why it is bad."""
        config = self._config
        try:
            image = config.samples.read(slot.index)
            if config.see is None:
                return (
                    image,
                    None if config.vary is None else partial(config.vary, slot.drawn_in(epoch), slot.index),
                    None,
                )
            checked = config.limits.checked(image)
            part, variation = config.see(slot.drawn_in(epoch), slot.index, checked.header.oriented_hw)
            return checked, None if variation is None else partial(given, variation), part
        except (OSError, BadSample, BadImage) as error:
            return bad_of(error)


class Workers(Protocol):
    """Makes the batches of an epoch, some of them ahead."""

    def run(self, batches: list[list[Slot]], epoch: int) -> Iterator[WorkerBatch]:
        """The batches, in order. Closing the iterator ends the epoch."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


Found = tuple[torch.Tensor | None, dict[int, Bad], dict[int, Seen]]
"""Of a part of a batch: its tensor where it is a whole batch by itself, and by place why samples are bad, and what is
seen in the others."""
Begun = tuple[list[Slot], torch.Tensor | None, list[Future[Found]]]
"""A batch that is being made: its slots, its tensor where that is there already, and its parts."""


class ThreadedWorkers(ABC, Generic[MakerT]):
    """Threads of this process, each with what ``make`` gives, that make ``prefetch`` batches ahead."""

    def __init__(self, make: Callable[[], MakerT], *, threads: int, prefetch: int, name: str) -> None:
        self._prefetch = prefetch
        self._threads: MakerThreads[MakerT] = MakerThreads(make, threads=threads, name=name)

    @abstractmethod
    def _start(self, slots: list[Slot], epoch: int) -> Begun:
        """Begin to make a batch."""

    def run(self, batches: list[list[Slot]], epoch: int) -> Iterator[WorkerBatch]:
        """See ``Workers.run``."""
        running: deque[Begun] = deque()
        todo = iter(batches)
        try:
            while True:
                while len(running) <= self._prefetch and (slots := next(todo, None)) is not None:
                    running.append(self._start(slots, epoch))
                if not running:
                    return
                slots, images, parts = running[0]
                bad: dict[int, Bad] = {}
                seen: dict[int, Seen] = {}
                for part in parts:
                    made, found, parts_seen = part.result()
                    images = made if images is None else images
                    bad.update(found)
                    seen.update(parts_seen)
                assert images is not None
                running.popleft()
                yield WorkerBatch(images, slots, bad, seen)
        finally:
            for _, _, parts in running:
                for part in parts:
                    part.cancel()

    def close(self) -> None:
        """See ``Workers.close``."""
        self._threads.close()


class ThreadWorkers(ThreadedWorkers[Maker]):
    """Those that make pictures.

    On the CPU every thread has a compiled definition of its own with one thread, as serving has in each process. A GPU
    gets one, which has ``threads`` threads itself and leaves its batches on the device.
    """

    def __init__(self, config: WorkerConfig, *, threads: int, prefetch: int) -> None:
        self._config = config
        self._on_gpu = config.device == "gpu"
        self._parts = 1 if self._on_gpu else threads
        part = -(-config.batch_size // self._parts)
        inner = threads if self._on_gpu else 1
        super().__init__(
            partial(config.maker, part, inner), threads=self._parts, prefetch=prefetch, name="onestream-loader"
        )

    def _start(self, slots: list[Slot], epoch: int) -> Begun:
        if self._on_gpu:
            return slots, None, [self._threads.submit(partial(self._on_device, slots, epoch))]
        images = self._config.empty(len(slots))
        shared = images.numpy()
        size = -(-len(slots) // self._parts)
        firsts = range(0, len(slots), size)
        parts = [self._threads.submit(partial(self._fill, shared, slots[n : n + size], n, epoch)) for n in firsts]
        return slots, images, parts

    def _fill(self, shared: npt.NDArray[Any], slots: list[Slot], first: int, epoch: int, maker: Maker) -> Found:
        bad = {}
        made = maker.make(slots, epoch)
        for place, sample in enumerate(made.samples, start=first):
            if isinstance(sample, Bad):
                # Never what happened to be in the memory, even if nobody looks.
                shared[place], bad[place] = 0, sample
            else:
                shared[place] = sample
        return None, bad, {first + place: seen for place, seen in made.seen.items()}

    def _on_device(self, slots: list[Slot], epoch: int, maker: Maker) -> Found:
        assert isinstance(maker, PictureMaker)
        return maker.make_on_device(slots, epoch)


class ProcessWorkers:
    """The processes of a ``torch.utils.data.DataLoader``, for the reference: all it needs are Pillow and PyTorch."""

    def __init__(self, config: WorkerConfig, *, threads: int, prefetch: int) -> None:
        config.maker(1, 1).close()
        self._batches = _Batches()
        self._loader = torch.utils.data.DataLoader(
            _MadeInProcess(config),
            batch_size=None,
            sampler=self._batches,
            num_workers=threads,
            prefetch_factor=max(1, -(-prefetch // threads)),
            persistent_workers=True,
            pin_memory=config.pin_memory,
        )

    def run(self, batches: list[list[Slot]], epoch: int) -> Iterator[WorkerBatch]:
        """See ``Workers.run``."""
        self._batches.of(batches, epoch)
        for slots, (images, bad, seen) in zip(batches, self._loader, strict=True):
            yield WorkerBatch(images, slots, bad, seen)

    def close(self) -> None:
        """See ``Workers.close``."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
            self._loader._iterator = None


class _Batches:
    """The sampler: whole batches, each with its epoch."""

    def __init__(self) -> None:
        self._items: list[tuple[list[Slot], int]] = []

    def of(self, batches: list[list[Slot]], epoch: int) -> None:
        self._items = [(slots, epoch) for slots in batches]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[list[Slot], int]]:
        return iter(self._items)


class _MadeInProcess:
    """The dataset: item (slots, epoch) is the batch made of them."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._maker: Maker | None = None

    def __getitem__(self, item: tuple[list[Slot], int]) -> tuple[torch.Tensor, dict[int, Bad], dict[int, Seen]]:
        slots, epoch = item
        if self._maker is None:
            self._maker = self._config.maker(len(slots), 1)
        made = self._maker.make(slots, epoch)
        bad = {place: sample for place, sample in enumerate(made.samples) if isinstance(sample, Bad)}
        blank = np.zeros(self._config.sample_shape, self._config.definition.output_spec.dtype)
        images = np.stack([blank if isinstance(one, Bad) else one for one in made.samples])
        return torch.from_numpy(images), bad, made.seen
