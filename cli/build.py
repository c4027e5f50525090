"""``onestream build``: a pipeline file in, a model repository out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from onestream.cli.exit_codes import EXIT_FAILED, fail, needs_extras
from onestream.cli.options import ONNX_HELP, check_plot, onnx_by_stage
from onestream.measure.image_files import ImageNames, expand

if TYPE_CHECKING:
    from onestream.serving.building.build import Built
    from onestream.serving.building.quantization.calibration import Calibration

_REPOSITORY = Path("model_repository")


def build(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file, such as pipelines/classify.yaml.")],
    *,
    onnx: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help=ONNX_HELP),
    ] = None,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = _REPOSITORY,
    form: Annotated[
        Literal["python", "dali-backend"],
        typer.Option(
            help="dali-backend: for the unmodified Triton container, without our Python (docs/containers.md)."
        ),
    ] = "python",
    version: Annotated[
        int, typer.Option(min=1, help="2 and more: beside version 1, for `onestream rollout` (docs/rollout.md).")
    ] = 1,
    precision: Annotated[
        Literal["float32", "bf16", "int8"] | None,
        typer.Option(help="Of the network on a CPU, in place of the file's serving.precision (docs/quantization.md)."),
    ] = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHOTOS",
            help="For int8 and bf16: images like those that will be served, files or folders.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="CSV of PICTURE,CLASS: the accuracy is compared, not the agreement with float32."),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The share of confident predictions that must stay the same; 0.97 by default."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the agreement and the time of every setting that was tried.")
    ] = None,
) -> None:
    """Write the model repository of a pipeline: NAME, NAME_preprocess, NAME_model, NAME_postprocess and NAME_fused.

    Of a cascade, whose file has stages: NAME, NAME_fused, and NAME_STAGE_model for each stage.

    The form dali-backend has NAME, NAME_preprocess and NAME_model only, and needs a folder of its own. Files that are
    there already and would not change are left alone. A network in int8 or bf16 is made with --calibrate, within two
    minutes for 64 photos of 224×224, and kept by later builds. Exits with 1 where the pipeline or the network cannot be
    served, saying why.
    """
    with needs_extras("cpu", code=EXIT_FAILED):
        from onestream.preprocess import PreprocessError
        from onestream.serving.building.build import build as build_repository
        from onestream.serving.errors import ServingError
    if calibrate is None and any(option is not None for option in (labels, min_agreement, plot)):
        raise typer.BadParameter("--labels, --min-agreement and --plot go with --calibrate PHOTOS")
    if plot is not None:
        check_plot(plot)
    console = Console(stderr=True)
    onnx_file, onnx_files = onnx_by_stage(onnx or [])
    try:
        calibration = _calibration(calibrate, labels, min_agreement)
        with console.status("building") as status:
            built = build_repository(
                pipeline,
                folder=repository,
                onnx_file=onnx_file,
                onnx_files=onnx_files,
                form=form,
                version=version,
                precision=precision,
                calibration=calibration,
                progress=lambda text: status.update(Text(text)),
            )
    except (ServingError, PreprocessError) as error:
        fail(f"cannot build: {error}", EXIT_FAILED)
    changed = f"{len(built.written)} files written" if built.written else "nothing to do, all files are up to date"
    typer.echo(f"{repository}: {changed}")
    typer.echo(f"models: {', '.join(built.models)}")
    for name, network in built.networks.items():
        typer.echo(f"{name}: network {network.source}")
        if network.certificate is not None:
            typer.echo(f"{name}: {network.certificate.summary()}")
    for note in built.notes:
        typer.echo(note)
    for name, quantization in built.quantizations.items():
        typer.echo(f"{name} in {quantization.summary()}")
    if plot is not None:
        from onestream.measure.quantization_plot import draw
        from onestream.serving.engine.quantization import Quantization

        in_int8 = {name: one for name, one in built.quantizations.items() if isinstance(one, Quantization)}
        if not in_int8:
            fail("nothing to plot: settings are tried for int8 alone", EXIT_FAILED)
        draw(in_int8, plot)
        typer.echo(f"plot: {plot}")
    typer.echo(f"next: {_next_command(built, repository, form, version)}")


def _next_command(built: Built, repository: Path, form: str, version: int) -> str:
    """What a user does with what was built."""
    from onestream.serving.built.versions import version_name

    if form == "dali-backend":
        return f"serve it as {repository / 'README.md'} says"
    where = "" if repository == _REPOSITORY else f" --repository {shlex.quote(str(repository))}"
    if version > 1:
        pipeline = built.pipeline.name.removesuffix(version_name("", version))
        return f"onestream rollout {pipeline} --to {version} --photos PHOTOS{where}"
    return f"onestream serve{where}"


def _calibration(pictures: list[str] | None, labels: Path | None, min_agreement: float | None) -> Calibration | None:
    from onestream.serving.building.quantization.calibration import MIN_AGREEMENT, Calibration

    if pictures is None:
        return None
    names = ImageNames()
    files = expand(pictures, names)
    if not files:
        fail(f"cannot build: {names.none_in(pictures)}", EXIT_FAILED)
    least = MIN_AGREEMENT if min_agreement is None else min_agreement
    return Calibration(pictures=files, labels=labels, min_agreement=least)
