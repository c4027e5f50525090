"""Image files as commands are given them: names, patterns and folders."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".webp", ".tif", ".tiff", ".bmp"})
"""What is taken from a directory, in lower or upper case. A file that is named is always sent."""


def expand(arguments: Iterable[str]) -> list[Path]:
    """The files that the arguments name, in their order; those of a directory or a pattern sorted.

    A directory stands for the images in it and below. A pattern that matches nothing, like a file that does
    not exist, stays as it is, so that it is reported as an image that cannot be read.
    """
    paths: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            paths += sorted(_images_below(path))
        elif not path.exists() and (matches := sorted(glob.glob(argument, recursive=True))):
            paths += [Path(match) for match in matches if not Path(match).is_dir()]
        else:
            paths.append(path)
    return paths


def _images_below(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
