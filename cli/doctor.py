"""``onestream doctor``: what this machine has and lacks, and the command that fixes each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from onestream.cli.exit_codes import EXIT_FAILED

_SHOWN = {
    "ok": ("ok", typer.colors.GREEN),
    "optional": ("missing (optional)", typer.colors.YELLOW),
    "problem": ("problem", typer.colors.RED),
}


def doctor(
    repository: Annotated[Path, typer.Option(help="The model repository to look at.")] = Path("model_repository"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what this machine has and lacks for serving, and the command that fixes each.

    Exits with 1 if something required is missing.
    """
    from onestream.serving.server.doctor import run_checks

    checks = run_checks(repository=repository)
    healthy = all(check.status != "problem" for check in checks)
    if as_json:
        print(json.dumps({"ok": healthy, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            word, colour = _SHOWN[check.status]
            typer.echo(f"{typer.style(f'{word:18}', fg=colour)} {check.name:{width}}  {check.found}")
            if check.fix:
                # A line of its own, never wrapped, so that it can be copied.
                typer.echo(f"{'':18} {'':{width}}  → {check.fix}")
    if not healthy:
        raise typer.Exit(EXIT_FAILED)
