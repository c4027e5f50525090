"""One image to be, and how its file is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from onestream.cli.bulk.sources import remote
from onestream.client import BadImage
from onestream.client.images import unreadable


@dataclass(frozen=True, slots=True)
class Sample:
    """One image to be: ``path`` of its file or of the file that holds it, and its ``key`` there, else empty.

    ``load(max_bytes)`` gives the path or the bytes to send; raises BadImage or UnreadableInput. Where ``at_any_time``
    is false it is to be called before the next sample is asked for, else any thread may call it later.
    """

    path: str
    key: str
    load: Callable[[int], str | bytes]
    at_any_time: bool = False


def as_text(name: str) -> str:
    """A name that can be written as UTF-8: bytes of other encodings appear as ``\\udcXX``."""
    return name.encode("utf-8", "backslashreplace").decode()


def file_sample(name: str) -> Sample:
    """The image in a file."""
    load = partial(_load_remote, name) if remote.is_address(name) else lambda _max_bytes: name
    return Sample(as_text(name), "", load, at_any_time=True)


def unreadable_sample(name: str, error: Exception) -> Sample:
    """What takes the place of images that cannot be read."""

    def load(_max_bytes: int) -> bytes:
        raise unreadable(as_text(name), error)

    return Sample(as_text(name), "", load, at_any_time=True)


def too_large(size: int, max_bytes: int) -> BadImage:
    """The error for an image of more bytes than the pipeline takes."""
    return BadImage("too_large", f"{size} bytes, allowed are at most {max_bytes}")


def _load_remote(address: str, max_bytes: int) -> bytes:
    try:
        with remote.open_stream(address) as file:
            data = file.read(max_bytes + 1)
    except Exception as error:  # what fsspec's packages raise is not one family
        raise unreadable(as_text(address), error) from None
    if len(data) > max_bytes:
        raise too_large(len(data), max_bytes)
    return data
