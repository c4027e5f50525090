"""The names of classes: a UTF-8 text file, one name a line, in the order of the class ids."""

from __future__ import annotations

from pathlib import Path


def read_labels(path: Path) -> list[str]:
    """Read a labels file. Raises ``ValueError`` where a line is empty, naming it."""
    labels = path.read_text(encoding="utf-8").splitlines()
    for number, label in enumerate(labels, start=1):
        if not label.strip():
            raise ValueError(f"{path.name} line {number} is empty; every class needs a name")
    return labels
