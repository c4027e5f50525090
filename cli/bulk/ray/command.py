"""``onestream bulk --ray``: the run of a command, its summary and its exit code."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import typer
from ray.exceptions import RayError, RayTaskError

from onestream.cli.bulk.progress import progress_bar
from onestream.cli.bulk.ray.answering import Answering, ByServer, ByThisProcess
from onestream.cli.bulk.ray.folder import OutputFolder
from onestream.cli.bulk.ray.machines import check_all
from onestream.cli.bulk.ray.options import RayOptions
from onestream.cli.bulk.ray.parts import Counts
from onestream.cli.bulk.ray.run import NoRoom, Workers, connected, finished, rest, standard_input
from onestream.cli.bulk.ray.sent_model import SentModel, built_model
from onestream.cli.bulk.ray.worker import OF_NO_IMAGE, OF_THE_MOMENT, Work
from onestream.cli.bulk.sources import counter
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail
from onestream.client import OnestreamError
from onestream.measure.image_files import ImageNames

_NOTES_SHOWN = 3


@dataclass
class _Tally:
    """What the run has come to; ``done`` and ``failed`` count rows, of earlier runs too."""

    done: int = 0
    failed: int = 0
    earlier: int = 0
    notes: int = 0

    def add(self, counts: Counts) -> None:
        self.done += counts.rows
        self.failed += counts.failed
        if counts.note:
            self.notes += 1
            if self.notes <= _NOTES_SHOWN:
                typer.echo(counts.note, err=True)


def bulk_on_ray(options: RayOptions) -> None:
    """Do what the command was asked for, by the workers of a cluster; ends it with its exit code."""
    if options.to is None:
        fail("--ray writes a folder; name it by --to OUT", EXIT_CANNOT_START)
    if options.url is not None and options.gpus_per_worker:
        fail("--gpus-per-worker is for the pipeline in the workers; with --url the server has it", EXIT_CANNOT_START)
    workers = Workers(options.cpus_per_worker, options.gpus_per_worker, options.workers)
    work = Work.of(options, OutputFolder(options.to))
    tally = _Tally()
    with ExitStack() as stack:
        try:
            if "-" in options.sources:
                work = replace(work, listed=stack.enter_context(standard_input()))
            stack.enter_context(connected(options.address))
            # Told before anything is done, where there is room for none.
            workers.most()
            check_all()
            answering, about = _answering(options, workers)
            stack.enter_context(work.out.held())
            work.out.begin(about, anew=options.overwrite)
        except RayError as error:
            fail(_without_trace(error), EXIT_CANNOT_START)
        except (*OF_NO_IMAGE, NoRoom, OnestreamError, ValueError, ImportError, OSError) as error:
            fail(str(error), EXIT_CANNOT_START)
        try:
            rate = _run(work, answering, workers, options, tally)
        except (*OF_NO_IMAGE, NoRoom) as error:
            fail(f"{work.out.place}: {error}", EXIT_CANNOT_START)
        except (*OF_THE_MOMENT, MemoryError, RuntimeError, RayError) as error:
            code = EXIT_FAILED if tally.done > tally.earlier else EXIT_CANNOT_START
            why = _without_trace(error) if isinstance(error, RayError) else str(error) or type(error).__name__
            fail(f"stopped after {tally.done} images: {why}{_kept(work)}", code)
        except KeyboardInterrupt:
            fail(f"interrupted after {tally.done} images{_kept(work)}", EXIT_INTERRUPTED)
    if not tally.done:
        fail(ImageNames(every_file=options.every_file).none_in(options.sources), EXIT_CANNOT_START)
    summary = f"{tally.done} images, {tally.failed} failed, {rate:.0f} images/s → {work.out.place}"
    if tally.failed:
        fail(summary, EXIT_FAILED)
    typer.echo(summary, err=True)


def _run(work: Work, answering: Answering, workers: Workers, options: RayOptions, tally: _Tally) -> float:
    """Do everything that is left; images a second."""
    complete = set()
    for name, counts in finished(work):
        complete.add(name)
        tally.add(counts)
    tally.earlier, began_s = tally.done, monotonic()
    if tally.earlier:
        typer.echo(f"going on after {tally.earlier} images of an earlier run", err=True)
    with ExitStack() as stack:
        count = counter(options.sources, every_file=options.every_file)
        advance = (
            stack.enter_context(progress_bar(done=tally.done, failed=tally.failed, count=count))
            if sys.stderr.isatty()
            else None
        )
        for counts in rest(work, answering, workers, finished=frozenset(complete)):
            tally.add(counts)
            if advance is not None:
                advance(tally.done, tally.failed)
    if tally.done:
        work.out.finish({"images": tally.done, "failed": tally.failed})
    return (tally.done - tally.earlier) / max(monotonic() - began_s, 1e-9)


def _answering(options: RayOptions, workers: Workers) -> tuple[Answering, dict[str, Any]]:
    """What workers answer with, and what the run is about: a run that goes on must be about the same."""
    about = {
        "sources": list(options.sources),
        "pipeline": options.pipeline,
        "top": options.top,
        "format": options.file_format,
        "files_per_part": options.files_per_part,
        "column": options.column,
    }
    if options.url is None:
        folder = built_model(options.pipeline, options.repository, workers.device)
        model = SentModel.of(folder)
        by_worker = ByThisProcess(model, options.top, options.cpus_per_worker, workers.device)
        return by_worker, about | {"model": model.digest, "device": workers.device}
    by = ByServer(
        options.url,
        options.token,
        options.pipeline,
        options.top,
        options.in_flight,
        options.timeout_s,
        options.priority,
    )
    by.check()
    return by, about


def _without_trace(error: RayError) -> str:
    """What Ray says in its first line; of an error in another process its own, and not where that was."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"


def _kept(work: Work) -> str:
    return f"; {work.out.place} has what is done, and the same command goes on from there"
