"""The option with which every command that calls a server takes a token."""

from __future__ import annotations

from typing import Annotated

import typer

# From the environment, so that it stands in no list of processes and no shell history.
TokenOption = Annotated[
    str | None,
    typer.Option(envvar="ONESTREAM_TOKEN", help="What a proxy asks for; better set it in the environment."),
]
