"""``onestream bulk``: very many images in, one table out, in as many runs as it takes."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from onestream.cli.all_option import TRIES_ALL, AllOption
from onestream.cli.bulk.journal import JournalError
from onestream.cli.bulk.outputs import Unwritable, writer_for
from onestream.cli.bulk.progress import progress_bar
from onestream.cli.bulk.run import Run, SourceChanged
from onestream.cli.bulk.sinks import OutputFile, Sink, Terminal
from onestream.cli.bulk.sources import is_countable, samples
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail
from onestream.cli.token_option import TokenOption
from onestream.client import DEFAULT_URL, Client, OnestreamError
from onestream.measure.image_files import ImageNames
from onestream.wire.priority import check_priority

_RETRIES = 4
_FIRST_ANSWER_S = 5.0
_LEAST_TIMEOUT_S = 30.0
"""Where the option says nothing: images wait for others, and a server that refuses them is asked again."""


class PriorityOption(str, Enum):
    """Priorities of ``onestream.wire.priority``."""

    high = "high"
    normal = "normal"
    low = "low"


def bulk(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCES",
            help="Images, folders, tar files (WebDataset shards), patterns like 'shard-{0000..0009}.tar', or - for a "
            "list of files on standard input.",
        ),
    ],
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Write this .csv, .jsonl, .parquet, or .json with COCO's results; lines on the terminal if left out."
        ),
    ] = None,
    every_file: AllOption = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, whatever earlier runs have written.")
    ] = False,
    url: Annotated[
        str, typer.Option(help="The server: host:port or grpc://… for gRPC, http://… for HTTP.")
    ] = DEFAULT_URL,
    token: TokenOption = None,
    pipeline: Annotated[str, typer.Option(help="The served pipeline, such as detect or classify_fused.")] = "classify",
    top: Annotated[
        int, typer.Option(min=1, help="How many classes to write for each image; objects and text are written all.")
    ] = 1,
    in_flight: Annotated[int, typer.Option(min=1, help="How many images to send at once.")] = 16,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Seconds that one image may take.  [default: 30, or what the pipeline states where that is more]",
        ),
    ] = None,
    priority: Annotated[
        PriorityOption, typer.Option(help="Who goes first where images wait in the server; low lets others go before.")
    ] = PriorityOption.low,
    shared_memory: Annotated[
        bool, typer.Option("--shared-memory", help="Hand images over in shared memory (server on this machine).")
    ] = False,
) -> None:
    """Classify any number of images on a running server, or find the objects or the text in them.

    However often a run is interrupted, the same command goes on.

    With --to OUT, OUT.journal holds what is done until OUT is complete; the same command goes on from there. Images
    that fail are rows, too, and are listed in OUT.errors.csv. Exits with 0 when all went well, 1 when an image failed
    or the server was lost on the way, 2 when nothing could be sent.
    """
    try:
        if to is not None:
            writer_for(to)
        client = Client(
            url,
            token=token,
            shared_memory=shared_memory,
            retries=_RETRIES,
            retry_overloaded=True,
            priority=check_priority(priority.value),
        )
    except (ValueError, ImportError) as error:
        fail(str(error), EXIT_CANNOT_START)
    with ExitStack() as stack:
        stack.enter_context(client)
        try:
            # Asks the server about the pipeline, so a wrong address or name ends here.
            client.max_body_bytes(pipeline, timeout_s=_FIRST_ANSWER_S)
            sink = _sink(to, sources, pipeline, top, anew=overwrite)
        except (OnestreamError, JournalError, OSError) as error:
            fail(str(error), EXIT_CANNOT_START)
        stack.callback(sink.close)
        listed = (os.fsdecode(line) for line in sys.stdin.buffer)
        names = ImageNames(every_file=every_file, way_out=TRIES_ALL)
        run = Run(
            client,
            samples(sources, listed, names=names),
            pipeline=pipeline,
            top=top,
            in_flight=in_flight,
            timeout_s=timeout_s or max(_LEAST_TIMEOUT_S, client.default_timeout_s(pipeline)),
        )
        show = sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
        try:
            rate = _work(run, sink, sources, every_file=every_file, show=show)
        except Unwritable as error:
            fail(str(error), EXIT_CANNOT_START)
        except SourceChanged as error:
            fail(f"{to}.journal does not fit: {error}; --overwrite begins anew", EXIT_CANNOT_START)
        except BrokenPipeError:
            # Who reads the lines has enough; typer ends without a word.
            raise
        except (OnestreamError, JournalError, OSError) as error:
            code = EXIT_FAILED if run.done else EXIT_CANNOT_START
            fail(f"stopped after {run.done} images: {error}{sink.kept}", code)
        except KeyboardInterrupt:
            fail(f"interrupted after {run.done} images{sink.kept}", EXIT_INTERRUPTED)
        if not run.done:
            fail(names.none_in(sources), EXIT_CANNOT_START)
        if names.passed_over:
            typer.echo(names.passed_over, err=True)
        summary = f"{run.done} images, {run.failed} failed, {rate:.0f} images/s{sink.results}"
        if run.failed:
            fail(summary, EXIT_FAILED)
        typer.echo(summary, err=True)


def _sink(to: Path | None, sources: list[str], pipeline: str, top: int, *, anew: bool) -> Sink:
    if to is None:
        return Terminal(top)
    return OutputFile(to, {"sources": sources, "pipeline": pipeline, "top": top}, top=top, anew=anew)


def _work(run: Run, sink: Sink, sources: list[str], *, every_file: bool, show: bool) -> float:
    """Do everything that is left; images a second."""
    run.pass_over(sink.earlier())
    earlier, began_s = run.done, monotonic()
    if earlier:
        typer.echo(f"going on after {earlier} images of an earlier run", err=True)

    def count() -> int:
        return sum(1 for _ in samples(sources, names=ImageNames(every_file=every_file)))

    with ExitStack() as stack:
        advance = (
            stack.enter_context(
                progress_bar(done=earlier, failed=run.failed, count=count if is_countable(sources) else None)
            )
            if show
            else None
        )
        for row in run.rows():
            sink.add(row)
            if advance is not None:
                advance(run.done, run.failed)
    sink.finish()
    return (run.done - earlier) / max(monotonic() - began_s, 1e-9)
