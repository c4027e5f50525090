"""``onestream models``: what a running server serves, and pipelines that are loaded and unloaded meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from onestream.cli.exit_codes import EXIT_FAILED, fail, needs_extras
from onestream.cli.options import Family
from onestream.wire.plain_text import one_line

RepositoryOption = Annotated[Path, typer.Option(help="The folder that `onestream serve` serves.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A pipeline, or one model of the repository.")]
_REPOSITORY = Path("model_repository")

models = typer.Typer(cls=Family)


@models.callback(invoke_without_command=True)
def _models(
    context: typer.Context,
    repository: RepositoryOption = _REPOSITORY,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
) -> None:
    """List the models of a repository as its running server has them.

    Exits with 1 where no server of this machine serves the repository.
    """
    if context.invoked_subcommand is not None:
        return
    found = _ask(repository, "models")
    if as_json:
        for one in found:
            typer.echo(json.dumps(one))
        return
    wide = max((len(one["name"]) for one in found), default=0)
    for one in found:
        typer.echo(f"{one['name']:{wide}}  {one['state'].lower():12}{one_line(one['reason'])}".rstrip())


@models.command()
def load(name: NameArgument, repository: RepositoryOption = _REPOSITORY) -> None:
    """Load a pipeline that was built meanwhile, or was unloaded, until the server ends."""
    typer.echo(f"loaded {', '.join(_ask(repository, 'load', name))}")


@models.command()
def unload(name: NameArgument, repository: RepositoryOption = _REPOSITORY) -> None:
    """Unload a pipeline until the server ends; requests inside are answered first."""
    typer.echo(f"unloaded {', '.join(_ask(repository, 'unload', name))}")


def _ask(repository: Path, do: str, *arguments: str) -> Any:
    """What the server answers; ends the program where it refuses."""
    with needs_extras("cpu", code=EXIT_FAILED):
        from onestream.serving.errors import ServingError
        from onestream.serving.server.control_socket import ControlSession
    try:
        with ControlSession(repository) as session:
            return session.ask(do, *arguments)
    except ServingError as error:
        fail(one_line(str(error)), EXIT_FAILED)
