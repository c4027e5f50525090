"""The image loader: batches for PyTorch, made by the definition that serving runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple

import torch

from preprocess.backends.base import BackendName, Device
from preprocess.definition import Definition
from preprocess.errors import BadSample, CannotCompile
from preprocess.limits import Limits
from preprocess.training.augmentation import Augmentation
from preprocess.training.device import ToDevice
from preprocess.training.order import LastBatch, Order, Slot
from preprocess.training.samples import Samples, Source, samples_of
from preprocess.training.shards import this_shard
from preprocess.training.workers import Bad, Made, ProcessWorkers, Recipe, ThreadWorkers, Workers
from preprocess.variation import Variation, canvas_of

PADDING_LABEL = -100
"""The label of a sample that only fills a batch up: PyTorch's losses ignore it (``ignore_index`` of cross entropy)."""
PADDING_INDEX = -1


class Batch(NamedTuple):
    """One batch.

    ``images`` is (batch, …) as the definition's output says, ``labels`` and ``indices`` int64 (batch,). ``indices`` are
    positions in the dataset. A sample that only fills the batch up has the index -1 and the label -100.
    """

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that could not be used: its position in the dataset, its name, and why."""

    index: int
    name: str
    reason: str


class ImageLoader:
    """An iterator over batches; each ``for`` loop is one epoch.

    ``source``: a folder with one folder per class, a file list, or an iterable of bytes or (bytes, label).
    ``train``: with random augmentation in place of the definition's geometry, shuffled; otherwise exactly what serving
    runs, in the dataset's order. ``shuffle`` overrides the latter. ``augmentation``: how images vary; needs ``train``.

    ``backend`` and ``device``: *dali* on *cpu* or *gpu* (batches stay there), or *reference*: Pillow in the worker
    processes of a ``torch.utils.data.DataLoader``. ``threads``: workers; None is one per core. ``prefetch``: batches
    that are made ahead.

    ``to``: the PyTorch device to which batches are copied, on a CUDA stream of the loader's own. ``normalize``:
    *backend*, or *torch*: uint8 pixels are copied and normalized on ``to``, with the same result and a quarter of the
    bytes. ``pin_memory``: page-locked batches, which CUDA copies faster; without a
    GPU it does nothing.

    ``last_batch``: *partial*, *pad* or *drop*. ``shard_id`` and ``num_shards``: None takes the rank and world size of
    ``torch.distributed`` or of torchrun's environment. ``bad_files``: *fail* raises ``BadSample``; *skip* leaves bad
    samples out, lists them in ``skipped``, and keeps the size of *pad* and *drop* batches with padding.

    Raises ``BadDataset``, ``CannotCompile``, or ``ValueError`` for an option out of range.
    """

    def __init__(
        self,
        definition: Definition,
        source: Source,
        *,
        batch_size: int,
        train: bool = False,
        augmentation: Augmentation | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        backend: BackendName = "dali",
        device: Device = "cpu",
        threads: int | None = None,
        prefetch: int = 2,
        to: torch.device | str | None = None,
        normalize: Literal["backend", "torch"] = "backend",
        pin_memory: bool = False,
        last_batch: LastBatch = "partial",
        shard_id: int | None = None,
        num_shards: int | None = None,
        bad_files: Literal["fail", "skip"] = "fail",
        limits: Limits | None = None,
    ) -> None:
        if augmentation is not None and not train:
            raise ValueError("augmentation needs train=True")
        if normalize not in ("backend", "torch") or bad_files not in ("fail", "skip"):
            raise ValueError(
                f"normalize must be 'backend' or 'torch', got {normalize!r}; "
                f"bad_files 'fail' or 'skip', got {bad_files!r}"
            )
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, got {seed}")
        if prefetch < 1 or (threads is not None and threads < 1):
            raise ValueError(f"prefetch and threads must be at least 1, got {prefetch} and {threads}")
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"images of a batch must have one size: {error}") from None
        self.definition = definition
        self.samples: Samples = samples_of(source)
        shard_id, num_shards = this_shard(shard_id, num_shards)
        self.order = Order(
            len(self.samples),
            batch_size,
            shuffle=train if shuffle is None else shuffle,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
        ).check()
        self.skipped: list[Skipped] = []
        self._epoch = 0
        self._skip, self._skipped_indices = bad_files == "skip", set[int]()
        self._to_device = ToDevice(definition, device=to, normalize=normalize == "torch")
        recipe = Recipe(
            definition=definition.pixels() if normalize == "torch" else definition,
            samples=self.samples,
            backend=backend,
            device=device,
            limits=limits or Limits(),
            batch_size=batch_size,
            vary=partial(_vary, augmentation or Augmentation(), seed, definition) if train else None,
            # As PyTorch's DataLoader: without a GPU there is nothing to copy to.
            pin_memory=pin_memory and torch.cuda.is_available(),
        )
        threads = threads or len(os.sched_getaffinity(0))
        make: Callable[..., Workers] = ProcessWorkers if backend == "reference" else ThreadWorkers
        self._workers = make(recipe, threads=threads, prefetch=prefetch)
        self._running: Iterator[Made] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels 0, 1, …; empty where the source gives none."""
        return self.samples.classes

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next ``for`` loop runs, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop runs, for a run that is resumed."""
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches per epoch."""
        return self.order.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """Run the next epoch. One that still runs is ended: the workers serve one at a time."""
        self.reset()
        epoch, self._epoch = self._epoch, self._epoch + 1
        self._running = self._workers.run(self.order.batches(epoch), epoch)
        return self._to_device.ahead(map(self._finished, self._running))

    def reset(self) -> None:
        """End the running epoch, if there is one, and drop what was made ahead."""
        if self._running is not None:
            close = getattr(self._running, "close", None)
            if close is not None:
                close()
            self._running = None

    def close(self) -> None:
        """End the workers and release all they hold. The loader cannot be used afterwards."""
        self.reset()
        self._workers.close()

    def __enter__(self) -> ImageLoader:
        """The loader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close a loader that was forgotten."""
        with suppress(Exception):
            self.close()

    def _finished(self, made: Made) -> Batch:
        """Check what the workers made, and add labels and indices."""
        for place, error in sorted(made.bad.items()):
            self._note(made.slots[place], error)
        slots, images = list(made.slots), made.images
        if made.bad:
            good = [place for place in range(len(slots)) if place not in made.bad]
            if not good:
                first = self.samples.name(slots[0].index)
                raise BadSample(f"all {len(slots)} images of a batch are bad, the first is {first}: {made.bad[0]}")
            if self.order.last_batch == "partial":
                images, slots = images[good], [slots[place] for place in good]
            else:
                for place in made.bad:
                    images[place], slots[place] = images[good[0]], Slot(slots[good[0]].index, is_padding=True)
        indices = [PADDING_INDEX if slot.is_padding else slot.index for slot in slots]
        labels = [PADDING_LABEL if slot.is_padding else self.samples.label(slot.index) for slot in slots]
        return Batch(images, torch.tensor(labels, dtype=torch.int64), torch.tensor(indices, dtype=torch.int64))

    def _note(self, slot: Slot, error: Bad) -> None:
        name = self.samples.name(slot.index)
        if not self._skip:
            raise BadSample(f"{name}: {error}")
        if slot.index not in self._skipped_indices:
            self._skipped_indices.add(slot.index)
            self.skipped.append(Skipped(slot.index, name, str(error)))


def _vary(
    augmentation: Augmentation, seed: int, definition: Definition, epoch: int, index: int, size_hw: tuple[int, int]
) -> Variation:
    channels = definition.output_spec.channels
    return augmentation.draw(size_hw, seed=seed, epoch=epoch, index=index, channels=channels)
