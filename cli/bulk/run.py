"""The run itself: images that the journal has are passed over, all others are sent, in order."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.sources import Sample, as_text
from onestream.client import (
    BadImage,
    Client,
    InvalidRequest,
    OnestreamError,
    Result,
    ServerFailed,
    ServerOverloaded,
    TimedOut,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from onestream.client.images import ImageInput, unreadable
from onestream.client.ordered import map_in_order
from onestream.wire.priority import Priority

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


Loaded = str | bytes | OnestreamError
"""What is there of an image: its path, its bytes, or why it cannot be read."""


FIRST_ANSWER_S = 5.0
_RETRIES = 4
_LEAST_TIMEOUT_S = 30.0
"""Where the option says nothing: images wait for others, and a server that refuses them is asked again."""


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
        items = ((sample, None if sample.at_any_time else loaded(sample, max_bytes)) for sample in self._samples)
        for row in map_in_order(partial(self._predict, max_bytes), items, in_flight=self._in_flight):
            self._count(row)
            yield row

    def _predict(self, max_bytes: int, item: tuple[Sample, Loaded | None]) -> Row:
        sample, image = item
        try:
            if image is None:
                image = loaded(sample, max_bytes)
            if isinstance(image, OnestreamError):
                raise image
            with opened(image) as file:
                result = self._client.predict(file, pipeline=self._pipeline, timeout_s=self._timeout_s)
        except _OF_ONE_IMAGE as error:
            return Row.of_error(sample.path, sample.key, error)
        return Row.of_result(sample.path, sample.key, as_answer(result, self._pipeline), self._top)

    def _count(self, row: Row) -> None:
        self.done += 1
        self.failed += row.error is not None


def patient_client(url: str, *, token: str | None, priority: Priority, shared_memory: bool = False) -> Client:
    """A client that asks again where it is refused. Raises ValueError and ImportError as ``Client`` does."""
    return Client(
        url,
        token=token,
        shared_memory=shared_memory,
        retries=_RETRIES,
        retry_overloaded=True,
        priority=priority,
    )


def timeout_for(client: Client, pipeline: str, timeout_s: float | None) -> float:
    """How long one image may take, in seconds, where the user says ``timeout_s`` or nothing."""
    return timeout_s or max(_LEAST_TIMEOUT_S, client.default_timeout_s(pipeline))


def as_answer(result: Result, pipeline: str) -> Result:
    """The result, if it has a place in a table. Raises UnexpectedResponse for one that has none."""
    if not result.is_tabular:
        raise UnexpectedResponse(
            f"{pipeline!r} answers {result.noun}; bulk writes classes, objects, masks, text, vectors and tensors"
        )
    return result


def opened(image: str | bytes) -> AbstractContextManager[ImageInput]:
    """What a sample gave, as a client or ``encode`` takes it. Raises UnreadableInput."""
    if isinstance(image, bytes):
        return nullcontext(image)
    try:
        # For what is no regular file a client waits for a while only.
        return open(image, "rb", buffering=0) if stat.S_ISREG(os.stat(image).st_mode) else nullcontext(image)
    except (OSError, ValueError) as error:
        raise unreadable(as_text(image), error) from None


def loaded(sample: Sample, max_bytes: int) -> Loaded:
    """What a sample gives, errors too."""
    try:
        return sample.load(max_bytes)
    except OnestreamError as error:
        return error


def _name(path: str, key: str) -> str:
    return f"{path!r}" + (f" {key!r}" if key else "")
