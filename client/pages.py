"""The pages of a TIFF file, each as a file of its own."""

from __future__ import annotations

import io
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

MOST_PAGES = 10_000
"""Most pages of one file that are split; a file with more counts as damaged."""

_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


class Page(io.BytesIO):
    """A page of a file, to be sent as a picture. ``path`` is the file's, ``number`` counts its pages from 1."""

    def __init__(self, content: bytes, path: str, number: int) -> None:
        super().__init__(content)
        self.path, self.number = path, number

    def __str__(self) -> str:
        return f"{self.path} page {self.number}"


def pages(data: bytes) -> Iterator[bytes]:
    """The pages of a TIFF in their order, each as the file with that page alone; any other file as it is.

    A damaged file is one page, of which the server says what is wrong. Every page has all the bytes of the file, since
    nothing is decoded or written anew.
    """
    order = _ORDERS.get(data[:4])
    places = _directories(data, order) if order is not None else []
    if order is None or len(places) < 2:
        yield data
        return
    yield from _alone(data, order, places)


def every_page(paths: Iterable[Path], *, max_bytes: int) -> Iterator[Path | Page]:
    """The pages of the TIFF files that have several, and the other files themselves."""
    for path in paths:
        found = pages_of_file(path, max_bytes=max_bytes)
        if found is None:
            yield path
        else:
            yield from found


def pages_of_file(path: str | os.PathLike[str], *, max_bytes: int) -> Iterator[Page] | None:
    """The pages of a TIFF file that has several.

    None of any other file, and of one that cannot be read or has more than ``max_bytes``.
    """
    try:
        # A pipe would be waited for.
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes:
            return None
        with open(path, "rb") as file:
            order = _ORDERS.get(file.read(4))
            if order is None:
                return None
            file.seek(0)
            data = file.read()
    except (OSError, ValueError):
        return None
    places = _directories(data, order)
    if len(places) < 2:
        return None
    return (Page(page, os.fspath(path), number) for number, page in enumerate(_alone(data, order, places), start=1))


def _alone(data: bytes, order: str, places: list[tuple[int, int]]) -> Iterator[bytes]:
    """The file with each of its directories alone."""
    for first, ends in places:
        alone = bytearray(data)
        struct.pack_into(order + "I", alone, 4, first)
        struct.pack_into(order + "I", alone, ends, 0)
        yield bytes(alone)


def _directories(data: bytes, order: str) -> list[tuple[int, int]]:
    """Where each directory begins, and where it says what the next one is; none where the chain is damaged."""
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    try:
        (at,) = struct.unpack_from(order + "I", data, 4)
        while at:
            if at in seen or len(seen) == MOST_PAGES:
                return []
            seen.add(at)
            (count,) = struct.unpack_from(order + "H", data, at)
            ends = at + 2 + 12 * count
            found.append((at, ends))
            (at,) = struct.unpack_from(order + "I", data, ends)
    except struct.error:
        return []
    return found
