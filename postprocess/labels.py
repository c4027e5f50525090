"""The names of classes: a UTF-8 text file, one name a line, in the order of the class ids."""

from __future__ import annotations

from pathlib import Path

COCO_IDS = tuple(number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
"""COCO's number of each of the 80 classes that ``coco_labels.txt`` names: ten of 1 to 90 were never given.

https://cocodataset.org, the ``categories`` of ``instances_val2017.json``.
"""


def names_in(text: str) -> list[str]:
    """The lines of a labels file's text."""
    # Not splitlines(), which also splits at characters that a name may contain.
    return text.removesuffix("\n").split("\n")


def read_labels(path: Path, *, spaces: bool = False) -> list[str]:
    """Read a labels file. Raises ``ValueError`` where it is not UTF-8 or a line is empty, naming it.

    A line of spaces is empty too; not so with ``spaces``, for a file of characters, of which the space is one.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8: byte {error.start} cannot be read") from None
    labels = names_in(text)
    for number, label in enumerate(labels, start=1):
        if not (label if spaces else label.strip()):
            raise ValueError(f"{path.name} line {number} is empty; every class needs a name")
    return labels
