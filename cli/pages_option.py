"""The option that says what is done with files of several pages."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Pages(str, Enum):
    """What of a TIFF file is asked for."""

    first = "first"
    every = "all"


PagesOption = Annotated[
    Pages, typer.Option(help="Of TIFF files of several pages: the first, or all, each as an image of its own.")
]
