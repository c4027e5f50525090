"""The work in parts: what becomes one file of the output, under a name that the sources decide."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from onestream.cli.bulk.ray.options import Format
from onestream.cli.bulk.sources import Unit

_FIRST_FILES, _SAME_SIZE = 8, 16
"""The files of the first parts, and the number of parts after which it doubles."""
_NAME = re.compile(r"part-(?P<number>\d{8})-(?P<digest>[0-9a-f]{16})\.(parquet|jsonl)")


@dataclass(frozen=True, slots=True)
class Part:
    """Units that follow each other in the sources: some images' files, or one file that holds many.

    ``seen`` is the name of the first that is there on the machine that lists the sources, empty where none is.
    """

    number: int
    units: tuple[Unit, ...]
    seen: str = ""

    @property
    def digest(self) -> str:
        """Tells the names of the units, in their order."""
        names = b"\0".join(unit.name.encode(errors="surrogateescape") for unit in self.units)
        return hashlib.sha256(names).hexdigest()[:16]

    def file_name(self, ending: Format) -> str:
        """The name of its file in the output."""
        return f"part-{self.number:08}-{self.digest}.{ending}"


class Counts(NamedTuple):
    """Rows of complete files, how many of them failed, and what the user is to be told."""

    rows: int = 0
    failed: int = 0
    note: str = ""


def parts(units: Iterable[Unit], *, most_files: int) -> Iterator[Part]:
    """The units in parts: up to ``most_files`` images' files that follow each other, or one file that holds many.

    The first parts of files are small, so that a few hundred images occupy many workers. How small depends on their
    number alone: a run that goes on has the same parts, however many workers it has.
    """
    number = 0
    waiting: list[Unit] = []
    for unit in units:
        if waiting and (unit.holds_many or len(waiting) >= min(most_files, _FIRST_FILES << number // _SAME_SIZE)):
            yield Part(number, tuple(waiting))
            number, waiting = number + 1, []
        if unit.holds_many:
            yield Part(number, (unit,))
            number += 1
        else:
            waiting.append(unit)
    if waiting:
        yield Part(number, tuple(waiting))


def number_in(file_name: str) -> int | None:
    """The number of the part whose file has this name; None for other files."""
    found = _NAME.fullmatch(file_name)
    return None if found is None else int(found["number"])
