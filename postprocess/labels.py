"""The names of classes: a UTF-8 text file, one name a line, in the order of the class ids."""

from __future__ import annotations

from pathlib import Path

_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
COCO91 = tuple(
    -1 if category == 0 or category in _COCO_GAPS else category - 1 - sum(gap < category for gap in _COCO_GAPS)
    for category in range(91)
)
"""From a COCO category, 0 to 90, to the class id, 0 to 79, that ``coco_labels.txt`` names; -1 for the background, 0,
and for the ten numbers that COCO never gave to a category."""


def read_labels(path: Path) -> list[str]:
    """Read a labels file. Raises ``ValueError`` where it is not UTF-8 or a line is empty, naming it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8: byte {error.start} cannot be read") from None
    # Not splitlines(), which also splits at characters that a name may contain.
    labels = text.removesuffix("\n").split("\n")
    for number, label in enumerate(labels, start=1):
        if not label.strip():
            raise ValueError(f"{path.name} line {number} is empty; every class needs a name")
    return labels
