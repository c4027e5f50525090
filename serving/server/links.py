"""Makes a folder of links to the entries of another, so that some entries can be replaced."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


def link_entries(folder: Path, view: Path, *, but: Collection[str] = ()) -> None:
    """Make the folder ``view`` with a link to every entry of ``folder`` whose name is not among ``but``."""
    view.mkdir(parents=True)
    for entry in folder.iterdir():
        if entry.name not in but:
            (view / entry.name).symlink_to(entry.resolve())
