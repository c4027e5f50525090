"""What runs on the machines of a cluster: the lister, which says what there is to do, and workers, which do it."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from onestream.cli.bulk.journal import JournalError
from onestream.cli.bulk.outputs import Unwritable, write_json_lines, write_parquet
from onestream.cli.bulk.ray.answering import Answering
from onestream.cli.bulk.ray.attempts import MOST_ATTEMPTS, Attempts
from onestream.cli.bulk.ray.folder import OutputFolder
from onestream.cli.bulk.ray.machines import Installed, WrongMachine, check_same, here
from onestream.cli.bulk.ray.options import Format, RayOptions
from onestream.cli.bulk.ray.parts import Counts, Part, number_in, parts
from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.sources import Sample, is_address, local_path, samples_of, units
from onestream.client import OnestreamError
from onestream.measure.image_files import ImageNames
from onestream.preprocess import PreprocessError
from onestream.serving.errors import ServingError
from onestream.serving.models.in_process import GpuFailed

Batch = dict[str, npt.NDArray[Any]]
"""Columns, as Ray Data gives and takes them."""


class SourcesChanged(Exception):
    """The sources do not have the images in a place that an earlier run found there."""


class WorkerFailed(Exception):
    """What ended a worker, or what one met that no other kind of error tells."""


OF_NO_IMAGE = (JournalError, PreprocessError, ServingError, SourcesChanged, Unwritable, WrongMachine)
"""What another run of the same command would meet again."""
OF_THE_MOMENT = (OnestreamError, OSError, GpuFailed, WorkerFailed)
"""What the same command may go on after."""
_TOLD = OF_NO_IMAGE + OF_THE_MOMENT


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done, the same for every process.

    ``folder`` is that of the one that asks, to which names are relative. ``listed`` is the file that holds standard
    input.
    """

    folder: str
    sources: tuple[str, ...]
    listed: str | None
    every_file: bool
    column: str | None
    out: OutputFolder
    file_format: Format
    top: int
    files_per_part: int

    @classmethod
    def of(cls, options: RayOptions, out: OutputFolder) -> Work:
        """What a command was asked for."""
        return cls(
            folder=os.getcwd(),
            sources=tuple(map(local_path, options.sources)),
            listed=None,
            every_file=options.every_file,
            column=options.column,
            out=out,
            file_format=options.file_format,
            top=options.top,
            files_per_part=options.files_per_part,
        )

    def enter(self) -> None:
        """Let names mean here what they mean to the one that asks. Raises ``WrongMachine`` where they cannot."""
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        try:
            self.out.check_run()
        except (JournalError, OSError) as error:
            raise WrongMachine(
                f"machine {here()} does not see {self.out.place} ({error}); take a folder that all machines share"
            ) from None


def list_parts(_: Batch, *, work: Work, finished: frozenset[str]) -> Iterator[Batch]:
    """The parts whose files are not among the ``finished`` ones of the output, one after the other, as ``items``.

    The last item may be ``Counts`` with a note for the user, or an error: ``SourcesChanged`` among others.
    """
    done = {number: name for name in finished if (number := number_in(name)) is not None}
    names = ImageNames(every_file=work.every_file)
    try:
        work.enter()
        with nullcontext(()) if work.listed is None else open(work.listed, errors="surrogateescape") as listed:
            for part in parts(units(work.sources, listed, names=names), most_files=work.files_per_part):
                earlier = done.pop(part.number, None)
                if earlier is None:
                    yield items([replace(part, seen=next(filter(_is_here, (unit.name for unit in part.units)), ""))])
                elif earlier != part.file_name(work.file_format):
                    raise SourcesChanged(
                        f"part {part.number} of the sources, from {part.units[0].name!r} on, has other files than an "
                        "earlier run found there"
                    )
        if done:
            raise SourcesChanged(
                f"the sources end before part {min(done)}, whose images an earlier run found there: {done[min(done)]}"
            )
        if names.passed_over:
            yield items([Counts(note=names.passed_over)])
    except Exception as error:  # Ray would hand it on as one of its own, and say much more
        yield items([portable(error)])


class Worker:
    """Makes files of parts; an actor of Ray's, which starts another one where it is lost.

    It takes and gives ``items``: of each part ``Counts`` when its file is complete, or the error that ends the run.
    """

    def __init__(self, *, work: Work, answering: Answering, asked_by: Installed, attempts: Attempts) -> None:
        self._work, self._attempts = work, attempts
        self._failure: Exception | None = None
        self._notes: list[str] = []
        try:
            check_same(asked_by, machine=here())
            work.enter()
            # Ray starts an actor again under its old id.
            opening = f"opening the pipeline on machine {here()} in actor {ray.get_runtime_context().get_actor_id()}"
            self._begin(opening)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", UserWarning)
                self._maker = answering.open()
            # For the first part's counts: nobody sees what a worker prints.
            self._notes = [f"machine {here()}: {one.message}" for one in told if one.category is UserWarning]
            attempts.end(opening)
        except Exception as error:  # as above
            self._failure = portable(error)

    def __call__(self, batch: Batch) -> Batch:
        """See the class."""
        return items([self._do(item) if isinstance(item, Part) else item for item in items_of(batch)])

    def _do(self, part: Part) -> Counts | Exception:
        if self._failure is not None:
            return self._failure
        try:
            return self._write(part)
        except GpuFailed as error:
            # No part may be written by a process that lost its GPU.
            self._failure = portable(error)
            return self._failure
        except Exception as error:  # as above
            return portable(error)

    def _write(self, part: Part) -> Counts:
        doing = f"part {part.number}, from {part.units[0].name!r} on,"
        was_begun = self._begin(doing)
        self._check_sees(part)
        names = ImageNames(every_file=self._work.every_file)
        samples = (sample for unit in part.units for sample in samples_of(unit, names, self._work.column))
        counted = _Counted(self._one_by_one(samples, doing) if was_begun else self._maker.rows(samples))
        file = io.BytesIO()
        if self._work.file_format == "parquet":
            write_parquet(file, counted, like=self._maker.example, top=self._work.top)
        else:
            write_json_lines(file, counted)
        # Where another run began anew meanwhile, of which a store tells nobody.
        self._work.out.check_run()
        self._work.out.write(part.file_name(self._work.file_format), file.getvalue())
        self._attempts.end(doing)
        notes, self._notes = [*self._notes, *filter(None, [names.passed_over])], []
        return Counts(counted.rows, counted.failed, "\n".join(notes))

    def _begin(self, doing: str) -> bool:
        """Whether others began it and were killed. Raises ``WorkerFailed`` where there were too many of them."""
        earlier, reached = self._attempts.begin(doing)
        if earlier >= MOST_ATTEMPTS:
            last = f"; replace the last image that was begun by an empty one to go on without it: {reached}"
            raise WorkerFailed(f"{doing} lost its process, or its machine, {earlier} times{last if reached else ''}")
        return earlier > 0

    def _check_sees(self, part: Part) -> None:
        """Raise ``WrongMachine`` where the part's files are on the one that lists them, and their folder is not here.

        A folder on which nothing is mounted is there, and empty.
        """
        # Names are relative to a folder that this machine may lack.
        name = os.path.join(self._work.folder, part.seen)
        if not part.seen or os.path.exists(name):
            return
        folder = os.path.dirname(name)
        if not os.path.isdir(folder) or not os.listdir(folder):
            raise WrongMachine(f"machine {here()} does not see {name}; take a folder that all machines share")

    def _one_by_one(self, samples: Iterator[Sample], doing: str) -> Iterator[Row]:
        """The same rows, each image told before it is begun: so the one that ends its process is known."""
        for sample in samples:
            self._attempts.reach(doing, repr(f"{sample.path} {sample.key}".rstrip()))
            yield from self._maker.rows(iter([sample]))


def _is_here(name: str) -> bool:
    return not is_address(name) and os.path.exists(name)


def portable(error: Exception) -> Exception:
    """The error, or ``WorkerFailed`` with its text where it is of no kind that users are told of, or cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # what an error's own arguments raise is of any kind
        is_sent = False
    else:
        is_sent = isinstance(error, _TOLD)
    return error if is_sent else WorkerFailed(f"{type(error).__name__}: {error}".removesuffix(": "))


def items(values: Sequence[Part | Counts | Exception]) -> Batch:
    """Values as a column that Ray Data takes from process to process of a cluster."""
    column = np.empty(len(values), object)
    column[:] = [pickle.dumps(value) for value in values]
    return {"item": column}


def items_of(batch: Batch) -> list[Part | Counts | Exception]:
    """What ``items`` wrote."""
    return [pickle.loads(value) for value in batch["item"]]


class _Counted:
    """Rows that are counted as they pass."""

    def __init__(self, source: Iterator[Row]) -> None:
        self._source = source
        self.rows = self.failed = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._source:
            self.rows += 1
            self.failed += row.error is not None
            yield row
