"""What a worker makes rows with: the pipeline in its own process, or a server that exists."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from onestream.cli.bulk.ray.sent_model import SentModel
from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.run import FIRST_ANSWER_S, Loaded, Run, as_answer, loaded, opened, patient_client, timeout_for
from onestream.cli.bulk.sources import Sample
from onestream.client import BadImage, Client, OnestreamError, Result, ServerFailed, kinds
from onestream.client.images import encode
from onestream.client.ordered import map_in_order
from onestream.preprocess import BadImage as Refused
from onestream.preprocess.backends.base import Device
from onestream.preprocess.headers.reader import FORMATS
from onestream.serving.errors import NetworkFailed
from onestream.serving.models.in_process import InProcess, Outcome
from onestream.serving.photos import bundled_photos
from onestream.wire.priority import Priority

_READ_AHEAD = 16
"""Images that a worker reads before they are needed: enough for a store that answers after 100 ms."""


class RowMaker(Protocol):
    """Makes rows of samples, in order. ``example`` shows which columns they have."""

    @property
    def example(self) -> Result:
        """The answer to a photo of the package."""

    def rows(self, samples: Iterator[Sample]) -> Iterator[Row]:
        """A row for each sample. Raises what is true of all of them."""


class Answering(Protocol):
    """What becomes a ``RowMaker`` in a worker's process."""

    def open(self) -> RowMaker:
        """Called once by each worker."""


@dataclass(frozen=True, slots=True)
class ByThisProcess:
    """The pipeline's fused form in the worker's own process, with so many threads and so many best classes."""

    model: SentModel
    top: int
    threads: int
    device: Device

    def open(self) -> InProcessRows:
        """See ``Answering.open``: load the model, which is sent to this machine unless it is there."""
        model = InProcess(self.model.folder_here(), device=self.device, threads=self.threads)
        return InProcessRows(model, top=self.top)


@dataclass(frozen=True, slots=True)
class ByServer:
    """A pipeline on a server that exists; every worker is a client."""

    url: str
    token: str | None
    pipeline: str
    top: int
    in_flight: int
    timeout_s: float | None
    priority: Priority

    def open(self) -> RowMaker:
        """See ``Answering.open``: connect."""
        return _ServerRows(patient_client(self.url, token=self.token, priority=self.priority), self)

    def check(self) -> None:
        """Ask the server about the pipeline. Raises ``OnestreamError`` where it has none of this name."""
        with patient_client(self.url, token=self.token, priority=self.priority) as client:
            client.max_body_bytes(self.pipeline, timeout_s=FIRST_ANSWER_S)


class InProcessRows:
    """See ``RowMaker``; files are read ahead by threads, and the pipeline runs in the thread that asks for rows."""

    def __init__(self, model: InProcess, *, top: int) -> None:
        self._model, self._top = model, top
        self.example = _example(lambda picture: self._answer(model([picture])[0], 0.0))

    @property
    def max_body_bytes(self) -> int:
        """Of an encoded image."""
        return self._model.limits.max_body_bytes

    def rows(self, samples: Iterator[Sample]) -> Iterator[Row]:
        """See ``RowMaker.rows``."""
        most = self.max_body_bytes
        items = ((sample, None if sample.at_any_time else loaded(sample, most)) for sample in samples)
        read = map_in_order(self._read, items, in_flight=_READ_AHEAD)
        while batch := list(itertools.islice(read, self._model.batch)):
            yield from self._rows_of(batch)

    def answer(self, images: Sequence[bytes | OnestreamError]) -> Iterator[Result | OnestreamError]:
        """What is said of encoded images, in order; of one that could not be read, why."""
        for start in range(0, len(images), self._model.batch):
            batch = images[start : start + self._model.batch]
            began_s = time.perf_counter()
            readable = [image for image in batch if isinstance(image, bytes)]
            outcomes = iter(self._model(readable) if readable else ())
            latency_ms = 1000 * (time.perf_counter() - began_s)
            for image in batch:
                yield image if isinstance(image, OnestreamError) else self._answer_or_error(next(outcomes), latency_ms)

    def _rows_of(self, batch: Sequence[tuple[Sample, bytes | OnestreamError]]) -> Iterator[Row]:
        for (sample, _), said in zip(batch, self.answer([image for _, image in batch]), strict=True):
            yield Row.of(sample.path, sample.key, said, self._top)

    def _read(self, item: tuple[Sample, Loaded | None]) -> tuple[Sample, bytes | OnestreamError]:
        sample, image = item
        most = self.max_body_bytes
        if image is None:
            image = loaded(sample, most)
        if isinstance(image, OnestreamError):
            return sample, image
        try:
            with opened(image) as file:
                return sample, encode(file, max_body_bytes=most).to_bytes()
        except OnestreamError as error:
            return sample, error

    def _answer_or_error(self, outcome: Outcome, latency_ms: float) -> Result | OnestreamError:
        try:
            return self._answer(outcome, latency_ms)
        except (BadImage, ServerFailed) as error:
            return error

    def _answer(self, outcome: Outcome, latency_ms: float) -> Result:
        """As a client reads it, so that rows are a server's. Raises BadImage, ServerFailed, UnexpectedResponse."""
        if isinstance(outcome, Refused):
            raise BadImage(outcome.code, outcome.reason)
        if isinstance(outcome, Exception):
            own = isinstance(outcome, NetworkFailed)
            reason = str(outcome) if own else f"the pipeline failed: {type(outcome).__name__}"
            raise ServerFailed(reason, status="INTERNAL")
        return as_answer(kinds.read(self._model.kind, self._model.name, outcome, "", latency_ms), self._model.name)


def _example(answer: Callable[[bytes], Result]) -> Result:
    """The answer to a photo of the package, small and in another format where a pipeline refuses it as it is.

    Raises BadImage where it refuses all of them.
    """
    photo = next(iter(bundled_photos().values()))
    try:
        return answer(photo)
    except BadImage as refused:
        error = refused
    with Image.open(io.BytesIO(photo)) as opened_photo:
        small = opened_photo.resize((8, 8))
    for image_format in FORMATS:
        file = io.BytesIO()
        small.save(file, image_format)
        try:
            return answer(file.getvalue())
        except BadImage as refused:
            error = refused
    raise error


class _ServerRows:
    """See ``RowMaker``."""

    def __init__(self, client: Client, by: ByServer) -> None:
        self._client, self._by = client, by
        self._timeout_s = timeout_for(client, by.pipeline, by.timeout_s)
        self.example = _example(
            lambda picture: as_answer(
                client.predict(picture, pipeline=by.pipeline, timeout_s=self._timeout_s), by.pipeline
            )
        )

    def rows(self, samples: Iterator[Sample]) -> Iterator[Row]:
        """See ``RowMaker.rows``."""
        by = self._by
        return Run(
            self._client, samples, pipeline=by.pipeline, top=by.top, in_flight=by.in_flight, timeout_s=self._timeout_s
        ).rows()
