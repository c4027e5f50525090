"""The loader of lines of text: regions as serving makes them, and targets as CTC's loss takes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from onestream.preprocess.backends.base import ON_CPU, CpuBackendName
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadSample, CannotCompile
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import Region
from onestream.preprocess.training.augmentation import Augmentation, generator
from onestream.preprocess.training.base_loader import BaseLoader, Seen, WorkerBatch, check_options, indices_of
from onestream.preprocess.training.device import ToDevice
from onestream.preprocess.training.order import SHUFFLE, LastBatch, Order, Slot, this_shard
from onestream.preprocess.training.text.characters import Characters, check_columns
from onestream.preprocess.training.text.files import TextFiles, TextLine
from onestream.preprocess.training.text.maker import LineMaker, sample_widths
from onestream.preprocess.training.text.workers import LineWorkers, Rows
from onestream.preprocess.variation import Variation

_WITHIN_WINDOWS = 2
"""A purpose of random numbers, beside ``SHUFFLE``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineOrder(Order):
    """How lines are cut into batches, as ``Order`` says, but so that few pictures are decoded twice.

    ``pictures``, int64 (count,), is the number of each line's picture, 0, 1, …; ``widths``, int64 (count,), the width
    of its sample in pixels. The lines of a picture follow each other, and a shard takes consecutive ones.
    ``window`` consecutive batches make a window: where shuffled, its lines are sorted by width, equal widths at random,
    and its batches come in a random order, the same in all shards: their batches are similarly wide at each step.
    """

    pictures: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int64]
    window: int = 8
    follows_from: ClassVar[tuple[str, ...]] = (*Order.follows_from, "window")

    def batches(self, epoch: int) -> list[list[Slot]]:
        """The batches of this shard in an epoch."""
        cut = Order.batches(self, epoch)
        if not self.shuffle:
            return cut
        return [
            batch for number, window in enumerate(self.windows(cut)) for batch in self._mixed(window, number, epoch)
        ]

    def windows(self, batches: list[list[Slot]]) -> Iterator[list[list[Slot]]]:
        """The windows of an epoch's batches."""
        for first in range(0, len(batches), self.window):
            yield batches[first : first + self.window]

    def _mixed(self, window: list[list[Slot]], number: int, epoch: int) -> list[list[Slot]]:
        random = generator(seed=self.seed, epoch=epoch, index=number, purpose=_WITHIN_WINDOWS)
        places = random.permutation(len(window))
        slots = [slot for batch in window for slot in batch]
        by_width = np.lexsort((random.random(len(slots)), self.widths[[slot.index for slot in slots]]))
        ends = np.cumsum([len(batch) for batch in window])
        mixed = [[slots[at] for at in part] for part in np.split(by_width, ends[:-1])]
        return [mixed[place] for place in places]

    def _of_shard(self, epoch: int) -> npt.NDArray[np.int64]:
        order = np.arange(self.count)
        if self.shuffle:
            random = generator(seed=self.seed, epoch=epoch, index=0, purpose=SHUFFLE)
            order = np.argsort(random.permutation(int(self.pictures.max()) + 1)[self.pictures], kind="stable")
        ends = [self.count * shard // self.num_shards for shard in range(self.num_shards + 1)]
        return order[ends[self.shard_id] : ends[self.shard_id + 1]]


WINDOW = 512
"""Lines whose pictures are decoded together, by default: some 50 photos with ten lines each."""


class TextBatch(NamedTuple):
    """One batch of lines, in the order of ``torch.nn.CTCLoss``: ``loss(log_probs, *batch[1:4])``.

    ``images`` is (batch, …) as the definition's output says, as wide as the widest line. ``targets`` int64 (sum of the
    target lengths,) are the classes of all texts, one after the other; ``input_lengths`` int64 (batch,) the columns
    that the network makes of each line's own width, ``target_lengths`` int64 (batch,) the characters of each text.
    ``widths`` int64 (batch,) are the pixels of ``images`` that are the line's, from the left: exactly what serving
    gives the network. ``texts`` are the strings, and ``indices`` int64 (batch,) positions in the dataset.

    A sample that only fills the batch up has the index -1, no text, and widths and lengths of 0: its loss is 0.
    """

    images: torch.Tensor
    targets: torch.Tensor
    input_lengths: torch.Tensor
    target_lengths: torch.Tensor
    widths: torch.Tensor
    texts: list[str]
    indices: torch.Tensor


class TextLoader(BaseLoader[TextBatch]):
    """An iterator over batches of lines of text; each ``for`` loop is one epoch.

    ``definition`` begins with ``region``. Its ``of``, ``classes`` and ``min_score`` say nothing here: the quads of
    ``source``, what ``read_text_lines`` or ``read_icdar`` gives, take the place of what an earlier stage finds.
    ``characters``: a UTF-8 file with a character a line, or the characters; class 0 is CTC's blank, the characters are
    1, 2, …. ``columns`` gives how many columns the network's output has for an input of so many pixels' width, as
    ``lambda width: width // 8``.

    Lines of a batch are padded on the right, to the widest of the batch, with the value of the definition's pad.
    Serving never does that: there every line has its own width, ``widths``.

    ``augmentation``: how lines vary; texts and widths stay. Its canvas is the region, in pixels of its picture, before
    the definition's operations, so that what is moved in comes from the picture around the line; beyond the picture is
    the augmentation's ``fill``, without it the picture's border repeated. Operations that would
    make another text of it (``flip``) are refused with ``CannotCompile``.

    ``shuffle``: whole pictures come in a random order, and within windows of some ``window`` lines batches are of
    similar width. A picture is decoded once for all of its lines in a window; two windows of samples are in memory.

    ``backend``: *dali* or *reference* decodes, in ``threads`` threads; None is one per core. ``to``: the PyTorch device
    to which batches are copied, on a CUDA stream of the loader's own. ``normalize``: *backend*, or *torch*: uint8
    pixels are copied and normalized on ``to``, with the same result and a quarter of the bytes. ``dtype`` and
    ``memory_format`` are those of ``PictureLoader``. ``pin_memory``: page-locked batches, which CUDA copies faster;
    without a GPU it does nothing.

    ``last_batch``: *partial*, *pad* or *drop*. ``shard_id`` and ``num_shards``: None takes the rank and world size of
    ``torch.distributed`` or of torchrun's environment. ``bad_files``: *fail* raises ``BadSample`` here for what shows
    already, with a line for each: what the files of lines say, a character that ``characters`` lacks, a text that is
    too long for its line's columns; and in an epoch for the others. *skip* leaves bad lines out, as ``ImageLoader``.

    Raises ``BadDataset``, ``CannotCompile``, or ``ValueError`` for an option out of range.
    """

    def __init__(
        self,
        definition: Definition,
        source: TextFiles,
        *,
        characters: str | os.PathLike[str] | Sequence[str],
        columns: Callable[[int], int],
        batch_size: int,
        augmentation: Augmentation | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window: int = WINDOW,
        backend: CpuBackendName = ON_CPU,
        threads: int | None = None,
        to: torch.device | str | None = None,
        normalize: Literal["backend", "torch"] = "backend",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        pin_memory: bool = False,
        last_batch: LastBatch = "partial",
        shard_id: int | None = None,
        num_shards: int | None = None,
        bad_files: Literal["fail", "skip"] = "fail",
        limits: Limits | None = None,
    ) -> None:
        check_options(normalize=normalize, bad_files=bad_files, seed=seed, window=window, threads=threads)
        if not isinstance(definition.source, Region):
            raise CannotCompile("lines of text need a definition that begins with region, got decode")
        if definition.output_spec.size_hw[0] is None:
            raise CannotCompile(
                "lines of a batch must have one height, but the definition's depends on the region; resize with the "
                "mode height or exact, or pad"
            )
        self.definition = definition
        self.characters = Characters(characters)
        self._columns = columns
        limits = limits or Limits()
        judged, widths = self._judged(source, limits)
        self.samples = TextFiles(judged)
        if bad_files == "fail":
            self.samples.refuse_bad()
        self._widths = np.array(widths, np.int64)
        shard_id, num_shards = this_shard(shard_id, num_shards)
        paths = [line.path for line in self.samples.samples]
        numbers = {path: number for number, path in enumerate(dict.fromkeys(paths))}
        order = LineOrder(
            len(self.samples),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            shard_id=shard_id,
            num_shards=num_shards,
            last_batch=last_batch,
            pictures=np.array([numbers[path] for path in paths], np.int64),
            widths=self._widths,
            window=-(-window // batch_size) if batch_size > 0 else 1,
        )
        order.check()
        to_device: ToDevice[TextBatch] = ToDevice(
            definition, device=to, normalize=normalize, dtype=dtype, memory_format=memory_format
        )
        super().__init__(self.samples, order, to_device=to_device, bad_files=bad_files, things="lines of text")
        self._lines_order = order
        made = to_device.made
        self._rows = Rows(made)
        self._workers = LineWorkers(
            partial(LineMaker, made, backend=backend, limits=limits),
            self.samples.samples,
            self._widths,
            self._rows,
            threads=threads or len(os.sched_getaffinity(0)),
            # As PyTorch's DataLoader: without a GPU there is nothing to copy to.
            pin_memory=pin_memory and torch.cuda.is_available(),
            draw=None if augmentation is None else partial(_vary, augmentation.check("lines"), seed),
        )

    def _judged(self, source: TextFiles, limits: Limits) -> tuple[list[TextLine], list[int]]:
        """The lines, with a problem where they cannot be used, and their samples' widths in pixels, or 1."""
        judged: list[TextLine] = []
        widths: list[int] = []
        for _, of_picture in groupby(source.samples, key=lambda line: line.path):
            lines = list(of_picture)
            found = iter(sample_widths(self.definition, [line for line in lines if not line.problem], limits))
            for line in lines:
                width = BadSample(line.problem) if line.problem else next(found)
                problem = str(width) if isinstance(width, BadSample) else self._problem(line.text, width)
                judged.append(replace(line, problem=problem))
                widths.append(1 if isinstance(width, BadSample) else width)
        return judged, widths

    def _problem(self, text: str, width: int) -> str:
        """Why a text cannot be that of a sample of so many pixels' width; empty where it can."""
        try:
            self.characters.classes_of(text)
            check_columns(text, self._columns(width))
        except BadSample as error:
            return str(error)
        return ""

    def _make(self, batches: list[list[Slot]], epoch: int) -> Iterator[WorkerBatch]:
        made: Iterator[WorkerBatch] = self._workers.run(self._lines_order.windows(batches), epoch)
        return made

    def _batch(self, samples: torch.Tensor, slots: Sequence[Slot], seen: Sequence[Seen]) -> TextBatch:  # noqa: ARG002 (boxes are for pictures)
        texts = ["" if slot.is_padding else self.samples.samples[slot.index].text for slot in slots]
        widths = [0 if slot.is_padding else int(self._widths[slot.index]) for slot in slots]
        classes = [self.characters.classes_of(text) for text in texts]
        return TextBatch(
            # Without the columns that only a bad line had; what fills the batch up may be cut.
            self._rows.cut(samples, max(widths)) if any(widths) else samples,
            torch.tensor([one for text in classes for one in text], dtype=torch.int64),
            torch.tensor([self._columns(width) if width else 0 for width in widths], dtype=torch.int64),
            torch.tensor([len(text) for text in classes], dtype=torch.int64),
            torch.tensor(widths, dtype=torch.int64),
            texts,
            indices_of(slots),
        )


def _vary(augmentation: Augmentation, seed: int, epoch: int, index: int, size_hw: Size) -> Variation:
    return augmentation.draw(size_hw, seed=seed, epoch=epoch, index=index)
