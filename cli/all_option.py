"""The option with which every command that looks for images takes all files."""

from __future__ import annotations

from typing import Annotated

import typer

TRIES_ALL = "--all tries every file"
"""What such a command says of the files that it passed over."""

AllOption = Annotated[
    bool, typer.Option("--all", help="Try every file of folders and tar files, not only those named like images.")
]
