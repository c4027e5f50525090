"""The characters that a recognizer knows, and what CTC needs of a text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.training.sources.annotations import read_bounded

BLANK = 0
"""The class that CTC puts between characters; ``torch.nn.CTCLoss`` has it as its default."""
MAX_BYTES = 16 * 1024**2
"""Of a file of characters; all of Unicode's would be 5 MB."""


class Characters:
    """Characters as classes: class 0 is CTC's blank, the characters are 1, 2, … in their order.

    ``source``: a UTF-8 file with a character a line, in which a line of one space is the space, or the characters.
    Raises ``BadDataset`` where an entry is not a single character, or comes twice.
    """

    def __init__(self, source: str | os.PathLike[str] | Sequence[str]) -> None:
        if isinstance(source, str | os.PathLike):
            name, entries = str(source), _read(Path(source))
        else:
            name, entries = "the list of characters", list(source)
        self._classes: dict[str, int] = {}
        for number, entry in enumerate(entries, start=BLANK + 1):
            if not isinstance(entry, str) or len(entry) != 1:
                raise BadDataset(f"{name}: entry {number} is {str(entry)[:20]!r}; expected one character")
            if self._classes.setdefault(entry, number) != number:
                raise BadDataset(f"{name}: entries {self._classes[entry]} and {number} are both {entry!r}")

    def __len__(self) -> int:
        """Number of classes, with the blank."""
        return len(self._classes) + 1

    def classes_of(self, text: str) -> list[int]:
        """The classes of a text's characters. Raises ``BadSample`` naming the first that is not there."""
        for place, character in enumerate(text, start=1):
            if character not in self._classes:
                raise BadSample(
                    f"character {place} of the text {_short(text)} is {character!r} (U+{ord(character):04X}), "
                    f"which is none of the {len(self._classes)} characters"
                )
        return [self._classes[character] for character in text]


def check_columns(text: str, columns: int) -> None:
    """Raise ``BadSample`` where CTC cannot write a text in so many columns of the network's output.

    Each character takes one, and a blank must stand between two equal ones (Graves et al. 2006, equation 1).
    """
    blanks = sum(one == other for one, other in pairwise(text))
    if len(text) + blanks > columns:
        between = f" and {blanks} for blanks between equal ones" if blanks else ""
        raise BadSample(
            f"the text {_short(text)} is too long: CTC needs {len(text)} columns for its characters{between}; "
            f"the network gives {columns} for this line"
        )


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _read(path: Path) -> list[str]:
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except (BadSample, UnicodeDecodeError) as error:
        raise BadDataset(f"{path} cannot be read as a list of characters: {error}") from None
    # Not splitlines(), which also splits at characters that may be listed.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
