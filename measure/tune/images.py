"""The user's images: a sample of a folder that stands for all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onestream.measure.image_files import ImageNames, expand

MOST_IMAGES = 40
MOST_BYTES = 32_000_000
"""perf_analyzer reads all images anew for every measurement, so there are not many."""


class NoImages(Exception):
    """There is nothing to measure with; the message says why."""


@dataclass(frozen=True, slots=True)
class Images:
    """Encoded images by file, in the order in which they are sent, and why others were left out.

    ``found`` counts the images that the sample was drawn from.
    """

    contents: dict[str, bytes]
    left_out: dict[str, str]
    found: int


def find(folder: Path, names: ImageNames | None = None) -> dict[Path, int]:
    """The images in a folder and below, as ``names`` tells, or one image, with their file sizes in bytes.

    Raises ``NoImages``.
    """
    names = names or ImageNames()
    found = {path: path.stat().st_size for path in expand([str(folder)], names) if path.is_file()}
    if not found:
        raise NoImages(names.none_in([str(folder)]))
    return found


def read(found: Mapping[Path, int], check: Callable[[bytes], str | None]) -> Images:
    """Read a sample of the images that ``find`` returned.

    ``check`` returns why an image cannot be served, or None. Where there are many, the sample has the same file sizes:
    it is spread evenly over the images by size. Raises ``NoImages``.
    """
    contents: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    for path in sample(list(found), list(found.values())):
        try:
            data = path.read_bytes()
        except OSError as error:
            left_out[str(path)] = error.strerror or str(error)
            continue
        reason = check(data)
        if reason is None:
            contents[str(path)] = data
        else:
            left_out[str(path)] = reason
    if not contents:
        first, reason = next(iter(left_out.items()))
        raise NoImages(f"none of the {len(left_out)} images that were read can be served; {first}: {reason}")
    return Images(contents, left_out, len(found))


def sample(paths: Sequence[Path], sizes: Sequence[int]) -> list[Path]:
    """At most ``MOST_IMAGES`` of the paths, of at most ``MOST_BYTES`` in all but for a single one, in mixed order.

    The choice depends on the paths and sizes only.
    """
    by_size = sorted(zip(sizes, paths, strict=True))
    mean = sum(sizes) / len(sizes)
    count = min(len(by_size), MOST_IMAGES, max(1, int(MOST_BYTES / mean)) if mean else MOST_IMAGES)
    step = len(by_size) / count
    chosen = [by_size[int((index + 0.5) * step)] for index in range(count)]
    random.Random(0).shuffle(chosen)
    kept: list[Path] = []
    total = 0
    for size, path in chosen:
        if kept and total + size > MOST_BYTES:
            continue
        kept.append(path)
        total += size
    return kept
