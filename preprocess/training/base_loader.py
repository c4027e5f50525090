"""Shared by all loaders: epochs one after the other, bad samples failed or skipped, labels, padding, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from onestream.preprocess.backends.base import Sample
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.projection import Located
from onestream.preprocess.training.device import ToDevice
from onestream.preprocess.training.order import Order, Slot
from onestream.preprocess.training.sources.labels import Labels, class_label

if TYPE_CHECKING:
    from typing_extensions import Self

PADDING_LABEL = -100
"""The label of a sample that only fills a batch up: PyTorch's losses ignore it (``ignore_index`` of cross entropy)."""
PADDING_INDEX = -1

Bad = BadImage | BadSample
"""Why a sample cannot be used."""
BatchT = TypeVar("BatchT", bound=tuple[Any, ...])


class Batch(NamedTuple):
    """One batch.

    ``images`` is (batch, …) as the definition's output says, ``labels`` and ``indices`` int64 (batch,). ``indices`` are
    positions in the dataset. A sample that only fills the batch up has the index -1 and the label -100. Where samples
    are mixed ``labels`` are float32 (batch, classes), the share of each class, and zeros of what only fills up.
    """

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


@dataclass(frozen=True, slots=True)
class SeenPart:
    """A picture that is seen in a sample, maybe one of several: its index in the dataset, and where its points lie.

    ``located`` is on its part of the canvas, whose top left corner is ``corner``, (y, x) in pixels, but for a warp,
    which masks alone follow. ``share`` is what it gives to the sample, 0 to 1. ``mask`` is its mask on the canvas,
    uint8 (height, width), if it has one.
    """

    index: int
    located: Located
    corner: tuple[int, int] = (0, 0)
    share: float = 1.0
    mask: npt.NDArray[np.uint8] | None = None


Seen = tuple[SeenPart, ...]
"""What is seen in a sample."""


@dataclass(frozen=True, slots=True)
class Made:
    """Samples as a worker made them, or why they are bad, and by place what is seen in them, for loaders that ask."""

    samples: list[Sample | Bad]
    seen: dict[int, Seen]


@dataclass(frozen=True, slots=True)
class WorkerBatch:
    """A batch as it comes from the workers: (batch, …), what it holds, and by place why samples are bad.

    ``seen`` says by place what is seen in a sample, for loaders that ask for it.
    """

    samples: torch.Tensor
    slots: Sequence[Slot]
    bad: dict[int, Bad]
    seen: dict[int, Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that could not be used: its position in the dataset, its name, and why."""

    index: int
    name: str
    reason: str


def bad_of(error: OSError | BadSample | BadImage) -> Bad:
    """An error of reading a sample, as a result, which holds no frames and with them no batch."""
    if isinstance(error, OSError):
        return BadSample(f"the file cannot be read: {error.strerror or error}")
    return error.as_result() if isinstance(error, BadImage) else BadSample(*error.args)


class Named(Protocol):
    """A dataset's names; see ``samples.Pictures``."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, …; empty where they have none."""
        ...

    def name(self, index: int) -> str:
        """The name of a sample, for messages."""
        ...


class Labelled(Named, Protocol):
    """A dataset's labels; see ``samples.Samples``."""

    def label(self, index: int) -> Any:
        """The label of a sample."""
        ...


def labels_of(dataset: Labelled, slots: Sequence[Slot]) -> torch.Tensor:
    """The labels of a batch, int64 (batch,) or as ``Labels`` says. Raises ``BadDataset`` for one of another kind."""
    kind: Labels | None = getattr(dataset, "kind", None)
    if kind is not None and kind.kind != "class":
        values = [None if one.is_padding else (dataset.label(one.index), dataset.name(one.index)) for one in slots]
        return kind.batch([None if one is None else kind.value(*one) for one in values])
    labels = [
        PADDING_LABEL if slot.is_padding else class_label(dataset.label(slot.index), dataset.name(slot.index))
        for slot in slots
    ]
    return torch.tensor(labels, dtype=torch.int64)


def indices_of(slots: Sequence[Slot]) -> torch.Tensor:
    """The positions of a batch's samples in the dataset, int64 (batch,)."""
    return torch.tensor([PADDING_INDEX if slot.is_padding else slot.index for slot in slots], dtype=torch.int64)


def check_options(*, normalize: str, bad_files: str, seed: int, **counts: int | None) -> None:
    """Raise ``ValueError`` naming an option of a loader that is out of range; ``counts`` are 1 or more, or None."""
    for name, given, one, other in (
        ("normalize", normalize, "backend", "torch"),
        ("bad_files", bad_files, "fail", "skip"),
    ):
        if given not in (one, other):
            raise ValueError(f"{name} must be {one!r} or {other!r}, got {given!r}")
    if seed < 0:
        raise ValueError(f"seed must be 0 or more, got {seed}")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


class ShardSampler(torch.utils.data.Sampler[int]):  # type: ignore[misc]
    """The samples of a loader's next epoch, of its shard."""

    def __init__(self, loader: BaseLoader[Any]) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """See ``BaseLoader.set_epoch``."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        """The indices in order, without padding."""
        batches = self._loader.order.batches(self._loader.epoch)
        return iter([slot.index for batch in batches for slot in batch if not slot.is_padding])

    def __len__(self) -> int:
        """Samples of the shard."""
        return len(list(iter(self)))


class SequentialShardSampler(ShardSampler, torch.utils.data.SequentialSampler):  # type: ignore[misc]
    """The same where nothing is shuffled, by which Lightning's ``overfit_batches`` knows it."""


class BaseLoader(ABC, Generic[BatchT]):
    """An iterator over batches; each ``for`` loop is one epoch.

    ``things`` is what to call samples in a message. ``to_device`` brings batches where a loop gets them.
    """

    batch_sampler = None
    """None, since batches come from no sampler; Lightning asks for it where there is a ``sampler``."""
    _workers: Any
    """What makes batches; set by subclasses."""

    def __init__(
        self,
        dataset: Named,
        order: Order,
        *,
        to_device: ToDevice[BatchT],
        bad_files: Literal["fail", "skip"],
        things: str,
    ) -> None:
        self.order = order
        self.skipped: list[Skipped] = []
        self._dataset, self._things, self._to_device = dataset, things, to_device
        self._skip, self._skipped_indices = bad_files == "skip", set[int]()
        self._epoch = self._running_epoch = 0
        self._begin = 0
        self._done: deque[int] = deque()
        self._running: Iterator[WorkerBatch] | None = None

    def _make(self, batches: list[list[Slot]], epoch: int) -> Iterator[WorkerBatch]:
        """Begin to make the batches of an epoch; closing the iterator ends it."""
        made: Iterator[WorkerBatch] = self._workers.run(batches, epoch)
        return made

    @abstractmethod
    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> BatchT:
        """A batch as a loop gets it; of padding it may be missing what is seen."""

    def _named(self, slot: Slot, error: Bad) -> BadSample:
        """The error of a bad sample, naming it."""
        return BadSample(f"{self._dataset.name(slot.index)}: {error}")

    @property
    def dataset(self) -> Named:
        """The samples."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        """Samples of a whole batch."""
        return self.order.batch_size

    @property
    def sampler(self) -> ShardSampler:
        """The indices of the next epoch, and ``set_epoch``, where trainers look for it."""
        return (ShardSampler if self.order.shuffle else SequentialShardSampler)(self)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, …; empty where the source gives none."""
        return self._dataset.classes

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next ``for`` loop runs, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop runs; one that ``load_state_dict`` put within that epoch stays there."""
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        if epoch != self._epoch:
            self._begin = 0
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: the epoch, the batches of it that the loop has got, and what the order follows from.

        It is a checkpoint's, as of torchdata's ``StatefulDataLoader``: plain numbers and words.
        """
        running = self._running is not None
        return {
            "epoch": self._running_epoch if running else self._epoch,
            "batches": self._done[0] if running else self._begin,
            **{name: getattr(self.order, name) for name in self.order.follows_from},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next loop go on with the batch after ``state_dict``; nothing before it is decoded.

        Workers may be other ones; within an epoch the number of shards may not. Raises ``ValueError`` where the state
        is another loader's, naming what differs.
        """
        if missing := {"epoch", "batches", *self.order.follows_from} - state.keys():
            raise ValueError(f"the state of a loader has no {', '.join(sorted(missing))}")
        for name in self.order.follows_from:
            mine, given = getattr(self.order, name), state[name]
            may_change = name not in ("count", "shuffle", "seed") and not state["batches"]
            if given != mine and not may_change:
                raise ValueError(f"the state is of a loader with {name} {given!r}; this one has {mine!r}")
        if state["batches"] and (others := state.keys() - {"epoch", "batches", *self.order.follows_from}):
            raise ValueError(f"the state is of a loader with {', '.join(sorted(others))}; this one has none")
        self.reset()
        self.set_epoch(state["epoch"])
        self._begin = int(state["batches"])

    def __len__(self) -> int:
        """Batches per epoch; a process that trains alone gets fewer where every sample of a batch is skipped."""
        return self.order.batches_per_epoch

    def __iter__(self) -> Iterator[BatchT]:
        """Run the next epoch, or the rest of one after ``load_state_dict``; it begins with its first batch.

        One that still runs is ended, since the workers serve one at a time; its iterator raises ``RuntimeError``.
        """
        self.reset()
        return self._run()

    def _run(self) -> Iterator[BatchT]:
        """The batches as a loop gets them, which may be later than they are made."""
        # Not before: Lightning makes iterators that it does not use, and chooses the epoch after it made one.
        self.reset()
        epoch, begin = self._epoch, self._begin
        running = self._make(self.order.batches(epoch)[begin:], epoch)
        self._running, self._running_epoch, self._done = running, epoch, deque([begin])
        self._epoch, self._begin = epoch + 1, 0
        for batch in self._to_device.ahead(self._finished(running)):
            if self._running is not running:
                break
            self._done.popleft()
            yield batch
        if self._running is not running:
            raise RuntimeError("another loop over this loader began, or it was reset, while this one ran")
        self._running = None

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

    def __enter__(self) -> Self:
        """The loader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close a loader that was forgotten."""
        with suppress(Exception):
            self.close()

    def _finished(self, made: Iterator[WorkerBatch]) -> Iterator[BatchT]:
        """Check what the workers made, add what belongs to it, and leave out batches in which no sample is good.

        Where several processes train together such a batch is padding instead, since all need the same number of
        batches. Raises ``BadSample`` at the end of an epoch in which no sample was good at all.
        """
        first_bad: BadSample | None = None
        # Where the epoch goes on, its earlier batches were good.
        bad_count, any_good = 0, self._done[0] > 0
        for number, batch in enumerate(made, start=self._done[0] + 1):
            for place, error in sorted(batch.bad.items()):
                first_bad = first_bad or self._named(batch.slots[place], error)
                self._note(batch.slots[place], error)
            real = [place for place, slot in enumerate(batch.slots) if not slot.is_padding]
            good_count = sum(place not in batch.bad for place in real)
            bad_count, any_good = bad_count + len(real) - good_count, any_good or good_count > 0
            if good_count or self.order.num_shards > 1:
                self._done.append(number)
                yield self._without_bad(batch)
        if first_bad is not None and not any_good:
            raise BadSample(f"all {bad_count} {self._things} of the epoch are bad, the first is {first_bad}")

    def _without_bad(self, made: WorkerBatch) -> BatchT:
        """The batch without what is bad: smaller, or of its size with padding in its place; never empty."""
        slots, samples = list(made.slots), made.samples
        seen = [made.seen.get(place, ()) for place in range(len(slots))]
        good = [place for place in range(len(slots)) if place not in made.bad]
        if made.bad and good and self.order.last_batch == "partial":
            samples = samples[good]
            slots, seen = [slots[place] for place in good], [seen[place] for place in good]
        elif made.bad:
            for place in made.bad:
                slots[place] = Slot(slots[place].index, is_padding=True)
                if good:
                    samples[place] = samples[good[0]]
        return self._batch(samples, slots, seen)

    def _note(self, slot: Slot, error: Bad) -> None:
        """Raise the error, or list the sample as skipped, once."""
        if not self._skip:
            raise self._named(slot, error)
        if slot.index not in self._skipped_indices:
            self._skipped_indices.add(slot.index)
            self.skipped.append(Skipped(slot.index, self._dataset.name(slot.index), str(error)))
