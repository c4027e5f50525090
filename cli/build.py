"""``onestream build``: a pipeline file in, a model repository out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from onestream.cli.exit_codes import EXIT_FAILED, fail
from onestream.cli.onnx_option import HELP, by_stage
from onestream.wire.install import install_command


def build(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file, such as pipelines/classify.yaml.")],
    *,
    onnx: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help=HELP),
    ] = None,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("model_repository"),
    form: Annotated[
        Literal["python", "dali-backend"],
        typer.Option(
            help="dali-backend: for the unmodified Triton container, without our Python (docs/stock-containers.md)."
        ),
    ] = "python",
    version: Annotated[
        int, typer.Option(min=1, help="2 and more: beside version 1, for `onestream rollout` (docs/rollout.md).")
    ] = 1,
) -> None:
    """Write the model repository of a pipeline: NAME, NAME_preprocess, NAME_model, NAME_postprocess and NAME_fused.

    Of a cascade, whose file has stages: NAME, NAME_fused, and NAME_STAGE_model for each stage.

    The form dali-backend has NAME, NAME_preprocess and NAME_model only, and needs a folder of its own. Files that are
    there already and would not change are left alone. Exits with 1 where the pipeline or the network cannot be served,
    saying why.
    """
    try:
        from onestream.preprocess import PreprocessError
        from onestream.serving.building.build import build as build_repository
        from onestream.serving.errors import ServingError
    except ImportError as error:
        fail(f"cannot build: {error.name or error} is not installed. Run: {install_command('cpu')}", EXIT_FAILED)
    console = Console(stderr=True)
    onnx_file, onnx_files = by_stage(onnx or [])
    try:
        with console.status("building") as status:
            built = build_repository(
                pipeline,
                folder=repository,
                onnx_file=onnx_file,
                onnx_files=onnx_files,
                form=form,
                version=version,
                progress=lambda text: status.update(text),
            )
    except (ServingError, PreprocessError) as error:
        fail(f"cannot build: {error}", EXIT_FAILED)
    changed = f"{len(built.written)} files written" if built.written else "nothing to do, all files are up to date"
    typer.echo(f"{repository}: {changed}")
    typer.echo(f"models: {', '.join(built.models)}")
    for note in built.notes:
        typer.echo(note)
    if form == "dali-backend":
        typer.echo(f"how to serve them: {repository / 'README.md'}")
