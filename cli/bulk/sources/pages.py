"""A sample for each page of a TIFF file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice

from onestream.cli.bulk.sources.samples import Sample
from onestream.client import OnestreamError
from onestream.client.pages import pages, pages_of_file


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
