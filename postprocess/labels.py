"""The names of classes: a UTF-8 text file, one name a line, in the order of the class ids."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

COCO_IDS = tuple(number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
"""COCO's number of each of the 80 classes that ``coco_labels.txt`` names: ten of 1 to 90 were never given.

https://cocodataset.org, the ``categories`` of ``instances_val2017.json``.
"""


def text_of(names: Iterable[str]) -> str:
    """The text of a labels file with these names."""
    return "".join(f"{name}\n" for name in names)


def names_in(text: str) -> list[str]:
    """The names in a text of ``text_of``."""
    # Not splitlines(), which also splits at characters that a name may contain.
    return text.removesuffix("\n").split("\n")


def read_labels(path: Path, *, spaces: bool = False) -> list[str]:
    """Read a labels file. Raises ``ValueError`` as ``labels_in``."""
    return labels_in(path.read_bytes(), path.name, spaces=spaces)


def labels_in(content: bytes, source: str, *, spaces: bool = False) -> list[str]:
    """The names in the content of a labels file, for the build and for the served model alike.

    Raises ``ValueError`` where it is not UTF-8 or a line is empty, naming ``source`` and the line. A line of spaces is
    empty too; not so with ``spaces``, for a file of characters, of which the space is one.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8: byte {error.start} cannot be read") from None
    labels = names_in(text.replace("\r\n", "\n").replace("\r", "\n"))
    for number, label in enumerate(labels, start=1):
        if not (label if spaces else label.strip()):
            raise ValueError(f"{source} line {number} is empty; every class needs a name")
    return labels
