"""The labels of pictures: which class each one shows, for the accuracy of a classification."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onestream.serving.errors import BadPipeline


@dataclass(frozen=True, slots=True)
class Truth:
    """The class of each picture, by the name of its file; ``sha256`` is of the labels file."""

    classes: Mapping[str, int]
    sha256: str

    @classmethod
    def read(cls, file: Path, names: Sequence[str] | None) -> Truth:
        """From a CSV file without a heading: the picture's file name, and its class as one of ``names`` or a number.

        Raises ``BadPipeline`` naming the line.
        """
        try:
            content = file.read_bytes()
            rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
        except OSError as error:
            raise BadPipeline(f"{file}: {error.strerror or error}; expected a file of labels") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadPipeline(f"{file}: no CSV in UTF-8: {error}") from None
        ids = {name: number for number, name in enumerate(names or ())}
        found: dict[str, int] = {}
        for line, row in enumerate(rows, start=1):
            if not row:
                continue
            if len(row) != 2:
                raise BadPipeline(f"{file} line {line}: expected PICTURE,CLASS, got {','.join(row)[:80]!r}")
            picture, label = (cell.strip() for cell in row)
            number = ids.get(label, int(label) if label.isdecimal() else None)
            if number is None:
                raise BadPipeline(f"{file} line {line}: {label[:80]!r} is no class of the network, and no number")
            if names is not None and number >= len(names):
                raise BadPipeline(f"{file} line {line}: class {number}; the network has 0 to {len(names) - 1}")
            if found.setdefault(picture, number) != number:
                raise BadPipeline(
                    f"{file} line {line}: {picture[:80]!r} has another class before; pictures are told apart by their "
                    "file names, without folders"
                )
        return cls(found, hashlib.sha256(content).hexdigest())
