"""One image to be, and how its file is read; of a TIFF file also each of its pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

from onestream.client import BadImage, OnestreamError
from onestream.client.images import unreadable
from onestream.client.pages import pages, pages_of_file
from onestream.preprocess.storage import remote


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


def paged(samples: Iterable[Sample], max_bytes: int) -> Iterator[Sample]:
    """The samples, in place of a TIFF of several pages one for each, ``page 1`` and so on at the end of its key."""
    for sample in samples:
        try:
            given = sample.load(max_bytes)
        except OnestreamError as error:
            yield replace(sample, load=_raising(error), at_any_time=True)
            continue
        if isinstance(given, bytes):
            found = pages(given)
        else:
            found = (page.getvalue() for page in pages_of_file(given, max_bytes=max_bytes) or ())
        # Each page has all the bytes of the file, so they are made as they are asked for.
        first = list(islice(found, 2))
        if len(first) < 2:
            yield replace(sample, load=_giving(given), at_any_time=True)
            continue
        for number, page in enumerate(chain(first, found), start=1):
            key = f"{sample.key} page {number}".strip()
            yield Sample(sample.path, key, _giving(page), at_any_time=True)


def _giving(content: str | bytes) -> Callable[[int], str | bytes]:
    return lambda _max_bytes: content


def _raising(error: OnestreamError) -> Callable[[int], bytes]:
    def load(_max_bytes: int) -> bytes:
        raise error

    return load
