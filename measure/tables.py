"""Tables in the terminal, and their word for what was not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Column, Table

NOT_MEASURED = "–"


def terminal(*columns: Column | str, title: str, padding: tuple[int, int, int, int] = (0, 1, 0, 1)) -> Table:
    """A table for the terminal, without rows yet; ``padding`` is above, right of, below and left of a cell."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(
        *columns,
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=padding,
    )
