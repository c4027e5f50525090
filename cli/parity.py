"""``onestream parity``: does what runs here give what the definition says, and if not, where does it depart?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, fail, needs_extras

if TYPE_CHECKING:
    from onestream.measure.parity.report import CascadeReport, Report


def parity(
    pipeline: Annotated[
        Path,
        typer.Argument(
            help="Pipeline file, a definition's file, or an image processor of transformers: its folder, "
            "preprocessor_config.json or id on the hub."
        ),
    ] = Path("pipelines/classify.yaml"),
    images: Annotated[
        list[str] | None,
        typer.Argument(help="Images, folders or patterns; the photos that come with the package if left out."),
    ] = None,
    *,
    repository: Annotated[Path, typer.Option(help="Where onestream build put the network.")] = Path("model_repository"),
    video: Annotated[
        list[Path] | None,
        typer.Option(metavar="CLIP", help="Compare frames of a video in place of images; may be repeated."),
    ] = None,
    frames: Annotated[int, typer.Option(min=1, help="How many frames of each video, at even distances.")] = 8,
    url: Annotated[
        str | None, typer.Option(help="Compare a running server too: HOST:PORT of its gRPC service.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Start a server, compare it too, and stop it.")] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            help="Show what other code costs: torchvision, opencv, pillow, MODULE:NAME of your own transform, or none; "
            "of a cascade rapidocr, too; of videos pyav, opencv, decord, or none; of patches transformers, MODULE:NAME "
            "of an image processor, or none; may be repeated.  \\[default: the libraries installed]",
        ),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON; - is stdout.")
    ] = None,
    heatmap: Annotated[Path | None, typer.Option(help="Write a PNG of where the differences are.")] = None,
    fail_on_flip: Annotated[
        bool,
        typer.Option(
            "--fail-on-flip",
            help="Also exit with 1 where a backend or the server flips a prediction or a text, or loses or adds a box "
            "or a region.",
        ),
    ] = False,
    min_ap: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Also exit with 1 where the boxes of a backend or the server agree with the reference's by less than "
            "this average precision.",
        ),
    ] = None,
) -> None:
    """Compare every backend, and a server, with the reference, stage by stage, and say where differences come from.

    Of a cascade every stage is compared on the regions that the reference finds, and the whole from picture to answer.
    Of patches the image processors of transformers are compared, picture by picture.
    Exits with 0 when all is within the tolerances, 1 when something is outside, 2 when nothing could be judged.
    """
    if url is not None and serve:
        fail(
            "--url and --serve exclude each other: the one asks a running server, the other starts one",
            EXIT_CANNOT_START,
        )
    with needs_extras("cpu"):
        from onestream.measure.parity.patches.source import is_image_processor
        from onestream.measure.parity.run import Options, run
        from onestream.measure.parity.subject import CannotCompare
    is_file = not pipeline.is_dir() and pipeline.suffix.lower() in (".yaml", ".yml")
    if not is_file and not is_image_processor(pipeline):
        fail(
            f"the first argument is the pipeline file, then come the images; got {pipeline}. "
            f"For example: onestream parity pipelines/classify.yaml {shlex.quote(str(pipeline))}",
            EXIT_CANNOT_START,
        )
    out, log = Console(), Console(stderr=True)
    options = Options(
        pipeline_file=pipeline,
        images=images or [],
        clips=video or [],
        frames=frames,
        repository=repository,
        url=url,
        serve=serve,
        against=against or None,
        heatmap=heatmap,
    )
    # Where nobody looks at it, a progress bar would only leave empty lines.
    with Progress(console=log, transient=True, redirect_stdout=False, disable=not log.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def progress(text: str, done: int, total: int | None) -> None:
            bar.update(task, description=escape(text), completed=done, total=total)

        try:
            report = run(options, progress=progress)
        except (CannotCompare, OSError) as error:
            bar.stop()
            fail(str(error), EXIT_CANNOT_START)
    if options.names.passed_over:
        typer.echo(options.names.passed_over, err=True)
    _show(report, json_file, out)
    if not report.judges:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in report.not_compared.items())
        fail(f"nothing is judged, since no backend but the reference can run here: {reasons}", EXIT_CANNOT_START)
    if min_ap is not None and (why := _no_ap(report.reports[0])):
        fail(f"--min-ap: {why}", EXIT_CANNOT_START)
    flips = report.flips(judged=True) if fail_on_flip else []
    if flips or not report.within or (min_ap is not None and report.below_ap(min_ap)):
        raise typer.Exit(EXIT_FAILED)


def _no_ap(report: Report) -> str:
    """Why no average precision was measured; empty where one was."""
    judged = [subject.boxes for subject in report.subjects if subject.judged]
    if any(boxes is not None and boxes.agreement_ap is not None for boxes in judged):
        return ""
    if any(boxes is not None for boxes in judged):
        return report.not_compared.get("agreement AP", "the reference finds no object in these images")
    return report.not_compared.get("boxes", f"{report.pipeline} finds no objects: its postprocess is of another kind")


def _show(report: Report | CascadeReport, json_file: str | None, out: Console) -> None:
    if json_file == "-":
        print(report.text())
        return
    if json_file is not None:
        try:
            Path(json_file).write_text(report.text() + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"--json: {error}", EXIT_CANNOT_START)
    from onestream.measure.parity.explain import explain
    from onestream.measure.parity.table import lists, pictures, tabulate

    for number, one in enumerate(report.reports):
        if number:
            out.print()
        out.print(tabulate(one))
        if (of_patches := pictures(one)) is not None:
            out.print()
            out.print(of_patches)
        for heading, lines in lists(one).items():
            if lines:
                out.print(f"\n[bold]{heading}[/bold]")
                for line in lines:
                    out.print(f"  {line}", highlight=False, markup=False)
        out.print()
        out.print(explain(one), highlight=False, markup=False)
