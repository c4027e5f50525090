"""``onestream rollout``: another version of a pipeline takes the place of the served one, while clients go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail, needs_extras
from onestream.cli.options import InputOption, read_inputs
from onestream.client import Client, OnestreamError
from onestream.measure.image_files import ImageNames, expand

if TYPE_CHECKING:
    from onestream.cli.rollout.checks import Comparison, Side
    from onestream.serving.server.control_socket import ControlSession

_ANSWER_TIMEOUT_S = 60.0
"""A cascade takes longer for a page with hundreds of lines than a client waits unless it is told."""


def rollout(
    pipeline: Annotated[str, typer.Argument(help="The pipeline that clients call, such as classify.")],
    *,
    to: Annotated[
        int | None, typer.Option(min=1, help="The version to serve; `onestream build --version` made it.")
    ] = None,
    back: Annotated[bool, typer.Option("--back", help="Return to the version that was served before.")] = False,
    photos: Annotated[Path | None, typer.Option(help="Folder of images on which the versions are compared.")] = None,
    network_input: InputOption = None,
    repository: Annotated[Path, typer.Option(help="The folder that `onestream serve` serves.")] = Path(
        "model_repository"
    ),
    url: Annotated[
        str | None, typer.Option(help="Another address of that server, such as a proxy's.  \\[default: its gRPC port]")
    ] = None,
    least_top1: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of photos that must keep their best class, or of objects that both versions must find.",
        ),
    ] = 0.99,
    watch_s: Annotated[float, typer.Option(min=0, help="Seconds to watch after the switch before it is kept.")] = 5.0,
    yes: Annotated[bool, typer.Option("--yes", help="Switch without asking when the checks pass.")] = False,
) -> None:
    """Load a version beside the served one, compare them, switch, watch, and keep it or return.

    Whatever fails, the version from before is served. Exits with 0 when the new version is served and pinned, 1 when a
    check failed or the answer was no, 2 when there is nothing to ask.
    """
    with needs_extras("cpu", code=EXIT_FAILED):
        from onestream.serving.errors import ServingError
        from onestream.serving.server.control_socket import ControlSession
    if back == (to is not None):
        fail("say either --to VERSION or --back", EXIT_CANNOT_START)
    try:
        inputs = read_inputs(network_input)
    except ValueError as error:
        fail(str(error), EXIT_CANNOT_START)
    names = ImageNames()
    files = expand([str(photos)], names) if photos else []
    if photos and not files:
        fail(names.none_in([str(photos)]), EXIT_CANNOT_START)
    if not files and not back:
        fail("give images to compare on: --photos DIR", EXIT_CANNOT_START)
    if names.passed_over:
        typer.echo(names.passed_over, err=True)
    try:
        session = ControlSession(repository)
    except ServingError as error:
        fail(f"cannot roll out: {error}", EXIT_CANNOT_START)
    try:
        with session:
            status = session.ask("status", pipeline)
            target = status["previous"] if to is None else to
            if target is None:
                fail(f"{pipeline} has no version from before; version {status['serving']} is served", EXIT_FAILED)
            with Client(url or status["url"], timeout_s=_ANSWER_TIMEOUT_S) as client:
                _roll(
                    session,
                    client,
                    pipeline,
                    status["serving"],
                    target,
                    repository,
                    [Path(file) for file in files],
                    inputs,
                    least_top1=least_top1,
                    watch_s=watch_s,
                    ask_first=not yes and not back,
                )
    except (ServingError, OnestreamError, ValueError) as error:
        fail(f"not rolled out: {error}", EXIT_FAILED)
    except KeyboardInterrupt:
        fail("not rolled out: interrupted; the server returns to the version from before", EXIT_INTERRUPTED)


def _roll(
    session: ControlSession,
    client: Client,
    pipeline: str,
    serving: int,
    target: int,
    repository: Path,
    photos: Sequence[Path],
    inputs: Mapping[str, Any],
    *,
    least_top1: float,
    watch_s: float,
    ask_first: bool,
) -> None:
    from onestream.cli.rollout.checks import Shown, Side, compare
    from onestream.preprocess import Definition
    from onestream.serving.built.triton_config import pictures_of, precision_of
    from onestream.serving.built.versions import version_forms, version_name, version_steps
    from onestream.serving.errors import ServingError
    from onestream.serving.models.in_process import fused_config
    from onestream.wire.kinds import KIND_PARAMETER
    from onestream.wire.tensor_names import IMAGE

    def side(version: int, forms: Sequence[str]) -> Side:
        name, fused = forms
        config = fused_config(repository / f"{version_name(pipeline, version)}_fused", "cpu")
        definition = repository / version_name(pipeline, version) / "definition.json"
        shown = None
        # A cascade has a definition for each stage, and no model that shows what they make.
        if definition.exists():
            preprocess = version_steps(repository, pipeline, version)[0]
            stated = Definition.from_json(definition.read_text(encoding="utf-8"))
            shown = Shown(preprocess, stated, tuple(pictures_of(config)))
        kind = config.parameters[KIND_PARAMETER].string_value
        beside = tuple(one.name for one in config.input if one.name != IMAGE)
        return Side(version, (name, fused), kind, shown, precision_of([fused], lambda _: config), beside)

    began = time.monotonic()
    session.ask("load_version", pipeline, target)
    typer.echo(f"version {target} is loaded beside version {serving} and warm ({time.monotonic() - began:.1f} s)")
    comparison = None
    if photos:
        old, new = side(serving, [pipeline, f"{pipeline}_fused"]), side(target, version_forms(pipeline, target))
        for one in (old, new):
            one.check_inputs(inputs)
        comparison = compare(client, old, new, photos, inputs)
        _show(comparison, serving, target, [old.precision, new.precision])
        failures = comparison.failures(least_top1=least_top1)
        if failures:
            raise ServingError(f"{'; '.join(failures[:3])}. Version {serving} stays served")
    if ask_first and not typer.confirm(f"serve version {target} as {pipeline}?"):
        raise ServingError(f"version {serving} stays served")
    session.ask("switch", pipeline, target)
    typer.echo(f"version {target} is served; watching for {watch_s:g} s")
    if comparison is not None:
        failure = _watch(client, pipeline, comparison, inputs, watch_s)
        if failure:
            raise ServingError(f"{failure}. Returning to version {serving}")
    session.ask("keep", pipeline)
    typer.echo(f"kept: {pipeline} is version {target}, after a restart too; version {serving} is unloaded")


def _watch(
    client: Client, pipeline: str, comparison: Comparison, inputs: Mapping[str, Any], watch_s: float
) -> str | None:
    """Ask both names until the time is over, at least each photo once; what went wrong, or None."""
    from onestream.cli.rollout.checks import agree, ask

    deadline = time.monotonic() + watch_s
    while True:
        for photo, expected in comparison.answers.items():
            for model in (pipeline, f"{pipeline}_fused"):
                answer = ask(client, model, photo, inputs)
                if isinstance(answer, OnestreamError):
                    return f"{model} does not answer {photo.name}: {answer}"
                if not agree(comparison.kind, answer, expected):
                    return f"{model} answers {photo.name} otherwise than before the switch"
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.1)


def _show(comparison: Comparison, serving: int, target: int, precisions: Sequence[str]) -> None:
    table = Table("check", f"version {serving} → {target}", box=None)
    refused = f" ({comparison.refused} refused)" if comparison.refused else ""
    table.add_row("photos", f"{comparison.photos}{refused}")
    if any(one != "float32" for one in precisions):
        table.add_row("network on a CPU", " → ".join(precisions))
    if comparison.kept is None:
        table.add_row("same best class", "no classes")
    else:
        table.add_row(comparison.kept.what, f"{comparison.kept.share:.1%}")
    table.add_row("score difference", f"{comparison.mean_difference:.4f} mean, {comparison.max_difference:.4f} max")
    if comparison.shows_pixels:
        unequal = comparison.pixels is None
        table.add_row("pixels", "another definition" if unequal else f"{comparison.pixels} levels of 255 apart at most")
    Console().print(table)
