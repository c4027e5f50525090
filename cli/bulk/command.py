"""``onestream bulk``: very many images in, one table out, in as many runs as it takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from onestream.cli.bulk.journal import JournalError
from onestream.cli.bulk.outputs import Unwritable, writer_for
from onestream.cli.bulk.progress import progress_bar
from onestream.cli.bulk.ray.options import Format, RayOptions
from onestream.cli.bulk.run import FIRST_ANSWER_S, Run, SourceChanged, patient_client, timeout_for
from onestream.cli.bulk.sinks import OutputFile, Sink, Terminal
from onestream.cli.bulk.sources import counter, is_address, local_path, samples
from onestream.cli.bulk.sources.samples import paged
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail
from onestream.cli.options import (
    TRIES_ALL,
    AllOption,
    Pages,
    PagesOption,
    SharedMemoryOption,
    TokenOption,
    UrlOption,
    server_url,
)
from onestream.client import OnestreamError
from onestream.measure.image_files import ImageNames
from onestream.wire.install import install_command
from onestream.wire.priority import Priority


def bulk(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCES",
            help="Images, folders, tar files (WebDataset shards), Parquet files, patterns like "
            "'shard-{0000..0009}.tar', also s3://…, gs://… and hdfs://…, or - for a list on standard input.",
        ),
    ],
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Write this .csv, .jsonl, .parquet, or .json with COCO's results; lines on the terminal if left out. "
            "With --ray a folder of parts.",
        ),
    ] = None,
    every_file: AllOption = False,
    pages: PagesOption = "first",
    column: Annotated[
        str | None,
        typer.Option(help="The column of Parquet files that holds the images.  \\[default: the only one of bytes]"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, whatever earlier runs have written.")
    ] = False,
    url: UrlOption = None,
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
            help="Seconds that one image may take.  \\[default: 30, or what the pipeline states where that is more]",
        ),
    ] = None,
    priority: Annotated[
        Priority, typer.Option(help="Who goes first where images wait in the server; low lets others go before.")
    ] = "low",
    shared_memory: SharedMemoryOption = False,
    on_ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Run on Ray: the pipeline in worker processes, without a server unless --url. "
            "--ray-address names a cluster.",
        ),
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The cluster: host:port of its head, or auto on one of its machines; implies --ray.  "
            "\\[default: a Ray of this machine, for this command]",
        ),
    ] = None,
    repository: Annotated[
        Path, typer.Option(help="With --ray: the folder of models in which the pipeline is built.")
    ] = Path("model_repository"),
    file_format: Annotated[
        Format, typer.Option("--format", help="With --ray: what the parts of the output are.")
    ] = "parquet",
    files_per_part: Annotated[
        int,
        typer.Option(min=1, help="With --ray: images in one part; a tar or Parquet file is always a part by itself."),
    ] = 1000,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="With --ray: worker processes.  \\[default: as many as there are CPUs and GPUs for]"),
    ] = None,
    cpus_per_worker: Annotated[
        int, typer.Option(min=1, help="With --ray: CPUs of each worker, and threads of its network and decoder.")
    ] = 1,
    gpus_per_worker: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="With --ray: 1 runs the pipeline on a GPU of each worker's own, 0.5 on one that two share; 0 on CPUs.",
        ),
    ] = 0,
) -> None:
    """Classify any number of images on a running server, or find the objects or the text in them.

    However often a run is interrupted, the same command goes on.

    With --to OUT, OUT.journal holds what is done until OUT is complete; the same command goes on from there. Images
    that fail are rows, too, and are listed in OUT.errors.csv. Exits with 0 when all went well, 1 when an image failed
    or the server was lost on the way, 2 when nothing could be sent.
    """
    names = ImageNames(every_file=every_file, way_out=TRIES_ALL)
    if on_ray or ray_address is not None:
        if pages == "all":
            fail("--pages all is for runs without --ray", EXIT_CANNOT_START)
        if shared_memory:
            fail("--shared-memory is for a server on this machine, without --ray", EXIT_CANNOT_START)
        _on_ray(
            RayOptions(
                sources=tuple(sources),
                to=to,
                overwrite=overwrite,
                every_file=every_file,
                column=column,
                pipeline=pipeline,
                repository=repository,
                top=top,
                file_format=file_format,
                files_per_part=files_per_part,
                address=ray_address,
                workers=workers,
                cpus_per_worker=cpus_per_worker,
                gpus_per_worker=gpus_per_worker,
                url=url,
                token=token,
                in_flight=in_flight,
                timeout_s=timeout_s,
                priority=priority,
            )
        )
        return
    out = None if to is None else Path(local_path(to))
    try:
        if to is not None and is_address(to):
            raise ValueError(f"--to {to} is on another machine, which is for --ray")
        if out is not None:
            writer_for(out)
        client = patient_client(server_url(url), token=token, shared_memory=shared_memory, priority=priority)
    except (ValueError, ImportError) as error:
        fail(str(error), EXIT_CANNOT_START)
    with ExitStack() as stack:
        stack.enter_context(client)
        try:
            # Asks the server about the pipeline, so a wrong address or name ends here.
            max_bytes = client.max_body_bytes(pipeline, timeout_s=FIRST_ANSWER_S)
            sink = _sink(out, sources, pipeline, top, pages, anew=overwrite)
        except (OnestreamError, JournalError, OSError) as error:
            fail(str(error), EXIT_CANNOT_START)
        stack.callback(sink.close)
        listed = (os.fsdecode(line) for line in sys.stdin.buffer)
        found = samples(sources, listed, names=names, column=column)
        run = Run(
            client,
            paged(found, max_bytes) if pages == "all" else found,
            pipeline=pipeline,
            top=top,
            in_flight=in_flight,
            timeout_s=timeout_for(client, pipeline, timeout_s),
        )
        show = sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
        try:
            counts = counter(sources, every_file=every_file) if pages == "first" else None
            rate = _work(run, sink, counts, show=show)
        except Unwritable as error:
            fail(str(error), EXIT_CANNOT_START)
        except SourceChanged as error:
            fail(f"{to}.journal does not fit: {error}; --overwrite begins anew", EXIT_CANNOT_START)
        except (OnestreamError, JournalError, ImportError, OSError) as error:
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


def _sink(to: Path | None, sources: list[str], pipeline: str, top: int, pages: Pages, *, anew: bool) -> Sink:
    if to is None:
        return Terminal(top)
    asked: dict[str, object] = {"sources": sources, "pipeline": pipeline, "top": top}
    if pages == "all":
        asked["pages"] = pages
    return OutputFile(to, asked, top=top, anew=anew)


def _work(run: Run, sink: Sink, counts: Callable[[], int] | None, *, show: bool) -> float:
    """Do everything that is left; images a second."""
    run.pass_over(sink.earlier())
    earlier, began_s = run.done, monotonic()
    if earlier:
        typer.echo(f"going on after {earlier} images of an earlier run", err=True)

    with ExitStack() as stack:
        advance = stack.enter_context(progress_bar(done=earlier, failed=run.failed, count=counts)) if show else None
        for row in run.rows():
            sink.add(row)
            if advance is not None:
                advance(run.done, run.failed)
    sink.finish()
    return (run.done - earlier) / max(monotonic() - began_s, 1e-9)


def _on_ray(options: RayOptions) -> None:
    try:
        from onestream.cli.bulk.ray.command import bulk_on_ray
    except ImportError as error:
        fail(f"--ray needs Ray and what serves: {install_command('cpu', 'ray')} ({error})", EXIT_CANNOT_START)
    bulk_on_ray(options)
