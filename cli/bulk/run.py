"""The run itself: images that the journal has are passed over, all others are sent, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

from onestream.cli.bulk.rows import Answer, Row
from onestream.cli.bulk.sources import Sample, as_text
from onestream.cli.result_lines import lines
from onestream.client import (
    BadImage,
    Client,
    InvalidRequest,
    OnestreamError,
    ServerFailed,
    ServerOverloaded,
    TimedOut,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from onestream.client.images import ImageInput, unreadable
from onestream.client.ordered import map_in_order

_OF_ONE_IMAGE = (
    BadImage,
    UnreadableInput,
    UnsupportedInput,
    InvalidRequest,
    ServerFailed,
    ServerOverloaded,
    TimedOut,
)
"""After these the next image may succeed. After any other none would, so the run stops; a later one continues it."""


class SourceChanged(Exception):
    """The sources do not begin with the images that an earlier run has done."""


class Run:
    """Goes through the samples once; ``done`` and ``failed`` count the rows so far, of earlier runs too."""

    def __init__(
        self,
        client: Client,
        samples: Iterator[Sample],
        *,
        pipeline: str,
        top: int,
        in_flight: int,
        timeout_s: float,
    ) -> None:
        self._client, self._samples = client, samples
        self._pipeline, self._top, self._in_flight, self._timeout_s = pipeline, top, in_flight, timeout_s
        self.done = self.failed = 0

    def pass_over(self, earlier: Iterable[Row]) -> None:
        """Take the samples of earlier rows off the front, unread. Raises SourceChanged where they are others."""
        for row in earlier:
            sample = next(self._samples, None)
            if sample is None or (sample.path, sample.key) != (row.path, row.key):
                now = "nothing" if sample is None else _name(sample.path, sample.key)
                raise SourceChanged(
                    f"image {self.done + 1} was {_name(row.path, row.key)}, the sources now have {now} there"
                )
            self._count(row)

    def rows(self) -> Iterator[Row]:
        """A row for each sample that is left. Raises errors that are not of one image alone, after the rows before."""
        max_bytes = self._client.max_body_bytes(self._pipeline)
        loaded = ((sample, _loaded(sample, max_bytes)) for sample in self._samples)
        for row in map_in_order(self._predict, loaded, in_flight=self._in_flight):
            self._count(row)
            yield row

    def _predict(self, loaded: tuple[Sample, str | bytes | OnestreamError]) -> Row:
        sample, image = loaded
        try:
            if isinstance(image, OnestreamError):
                raise image
            with _opened(image) as opened:
                result = self._client.predict(opened, pipeline=self._pipeline, timeout_s=self._timeout_s)
        except _OF_ONE_IMAGE as error:
            return Row.of_error(sample.path, sample.key, error)
        if not isinstance(result, Answer):
            raise UnexpectedResponse(
                f"{self._pipeline!r} answers {lines(result, 1)[0].what}; bulk writes classes, objects and text"
            )
        return Row.of_result(sample.path, sample.key, result, self._top)

    def _count(self, row: Row) -> None:
        self.done += 1
        self.failed += row.error is not None


def _opened(image: str | bytes) -> AbstractContextManager[ImageInput]:
    if isinstance(image, bytes):
        return nullcontext(image)
    try:
        return open(image, "rb", buffering=0)
    except (OSError, ValueError) as error:
        raise unreadable(as_text(image), error) from None


def _loaded(sample: Sample, max_bytes: int) -> str | bytes | OnestreamError:
    try:
        return sample.load(max_bytes)
    except OnestreamError as error:
        return error


def _name(path: str, key: str) -> str:
    return f"{path!r}" + (f" {key!r}" if key else "")
