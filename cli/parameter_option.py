"""The option with which commands set options of a pipeline for their requests alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from onestream.client.calls import checked_parameters

ParameterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter",
        metavar="NAME=VALUE",
        help="A number in the place of an option of the pipeline, such as score_threshold=0.4; may be repeated.",
    ),
]


def read_parameters(given: Sequence[str] | None) -> dict[str, float]:
    """The numbers of ``--parameter`` by their names. Raises ValueError for what cannot be sent, or is given twice."""
    found: dict[str, float] = {}
    for one in given or ():
        name, _, text = one.partition("=")
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"--parameter {one:.80}: expected NAME=NUMBER, such as top_k=1") from None
        if name in found:
            raise ValueError(f"--parameter {name:.80} is given twice")
        found[name] = int(value) if value.is_integer() else value
    return checked_parameters(found)
