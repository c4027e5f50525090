"""The client itself: images in, typed results out. ``_client`` is made of this by ``make sync``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

from onestream.client import calls, kinds
from onestream.client._link_aio import AsyncLink, encode, encoded_bytes, sleep
from onestream.client._transports.base import (
    DEFAULT_MAX_ANSWER_BYTES,
    InferRequest,
    RequestMetadata,
    Tensors,
)
from onestream.client._transports.transport_aio import AsyncTransport
from onestream.client.calls import DEFAULT_URL, NOT_READY, READY_PAUSE_S, Limits, limits_of, positive
from onestream.client.errors import ClientClosed, OnestreamError
from onestream.client.images import ImageInput
from onestream.client.kinds import Classification, Detections, Embedding, Reading, Result, Segmentation
from onestream.client.kinds.base import ResultT
from onestream.client.ordered import map_in_order_aio, numbered_aio
from onestream.client.results import Item, ServerInfo
from onestream.client.retries import Deadline, Retries
from onestream.client.statistics import ModelStatistics
from onestream.client.video.reconnect import Reconnect
from onestream.client.video.sound import Sound
from onestream.client.video.sources import VideoInput
from onestream.client.video.stream import Stream
from onestream.wire.priority import Priority, check_priority
from onestream.wire.video import Mode, Packet

_T = TypeVar("_T")


class AsyncClient:
    """Calls pipelines that a Triton server serves.

    ``AsyncClient`` has the options, calls, results and errors of ``Client``, awaited. Nothing is connected before the
    first call. Close it, or use it as a context manager.

    One ``Client`` may be used by many threads at once; make it after a fork, not before. One ``AsyncClient`` may be
    used by many tasks of one event loop, the one that runs at its first call; files are read, and arrays encoded, by
    another thread. A task that is cancelled while it waits ends its request: over gRPC Triton then drops it from its
    queue.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_s: float | None = None,
        connect_timeout_s: float = 5.0,
        max_body_bytes: int | None = None,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
        shared_memory: bool = False,
        retries: int = 2,
        retry_overloaded: bool = False,
        priority: Priority = "normal",
        transport: AsyncTransport | None = None,
    ) -> None:
        """
        ``url``
            ``host:port`` or ``grpc://host:port`` for gRPC, ``http://host:port`` for HTTP; ``grpcs`` and
            ``https`` encrypt. Ports default to 8001 and 8000.
        ``token``
            What a proxy before the server asks for, sent as ``Authorization: Bearer``. Needs ``grpcs`` or ``https``.
        ``timeout_s``
            How long one image may take, connecting and retries included, unless a call says otherwise. By default what
            each model's configuration states, read once from the server, or 10 seconds where it states none.
        ``connect_timeout_s``
            How long the server may take to accept a connection, within ``timeout_s``.
        ``max_body_bytes``
            The largest encoded image that is sent. By default each model's own limit, or 32 MiB where it states none.
            Where this is given, no configuration is read.
        ``max_answer_bytes``
            The most that one answer's tensors may take, 128 MiB by default. Where a model's configuration declares the
            sizes of its outputs and is read (which it is unless ``max_body_bytes`` is given), their sum holds if it is
            less. A larger answer is an UnexpectedResponse.
        ``shared_memory``
            Hand images over in system shared memory. Needs a server on the same host.
        ``retries``
            How often a call is repeated at most after a refused or broken connection or while a model is being
            restarted. Bad images and passed deadlines are never repeated.
        ``retry_overloaded``
            Repeat also when the server's queue is full. Better send fewer images at once.
        ``priority``
            Whose images go first where they wait in the server: *high* before *normal* before *low*.
        ``transport``
            Use this one in place of a connection to ``url``; that of an ``AsyncClient`` has no shared memory.
        """
        self._timeout_s = None if timeout_s is None else positive("timeout_s", timeout_s)
        if max_body_bytes is not None:
            positive("max_body_bytes", max_body_bytes)
        self._max_body_bytes = max_body_bytes
        self._max_answer_bytes = int(positive("max_answer_bytes", max_answer_bytes))
        self._limits: dict[str, Limits] = {}
        self._priority = check_priority(priority)
        self._retries = Retries(at_most=retries, when_overloaded=retry_overloaded)
        self._link = AsyncLink(
            url,
            connect_timeout_s=positive("connect_timeout_s", connect_timeout_s),
            token=token,
            max_answer_bytes=self._max_answer_bytes,
            shared_memory=shared_memory,
            transport=transport,
        )

    @property
    def url(self) -> str:
        """The server's address in full, such as ``grpc://127.0.0.1:8001``."""
        return self._link.transport.url

    async def classify(
        self,
        image: ImageInput,
        *,
        pipeline: str = "classify",
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Classification:
        """The classes of one image, best first.

        ``image`` is an encoded file as bytes, path or binary file object, a NumPy array or a PIL image
        (``onestream.client.images.encode`` has the details). ``pipeline`` may also be ``"classify_fused"``, which gives
        equal results. Raises the errors of ``onestream.client.errors``.

        ``parameters`` are numbers in the place of options of the pipeline, for this image alone: ``{"top_k": 1}``, or
        of a detection ``{"score_threshold": 0.4}`` (docs/wire-contract.md has them all). InvalidRequest is raised where
        the pipeline does not take them.

        ``request_id``, 1 to 128 letters, digits or any of ``. _ ~ : / + = @ -``, names the request in the result, in
        errors, in the server's log and in its traces; by default it is random. ``traceparent`` is W3C's header of that
        name: the server's spans then belong to the caller's. Raises ValueError where one of them has another form.
        """
        return await self._answer(Classification, pipeline, image, parameters, timeout_s, request_id, traceparent)

    def classify_many(
        self,
        images: Iterable[ImageInput] | AsyncIterable[ImageInput],
        *,
        pipeline: str = "classify",
        in_flight: int = 8,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Item[Classification], None]:
        """The classes of every image, in the order of ``images``, with up to ``in_flight`` images on their way.

        ``images`` may be endless: it is read as results are asked for, at most ``in_flight`` images ahead of
        them. An image that fails gives an Item with its error and the others go on; an error of the iterable
        itself is raised after the results of the images before it. ``timeout_s`` is for each image. Because
        the order is kept, an image that waits for its deadline holds back the results behind it.

        ``AsyncClient`` takes asynchronous iterables as well; a plain one is read by the event loop and should not
        block. Where the iteration is left early, ``aclose()`` of what is returned (or ``contextlib.aclosing``) cancels
        at once what is in flight.
        """
        return self._many(
            images,
            lambda image: self.classify(image, pipeline=pipeline, parameters=parameters, timeout_s=timeout_s),
            in_flight,
            parameters,
            timeout_s,
        )

    async def detect(
        self,
        image: ImageInput,
        *,
        pipeline: str = "detect",
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Detections:
        """The objects in one image, with their boxes in its pixels; options and errors as of ``classify``."""
        return await self._answer(Detections, pipeline, image, parameters, timeout_s, request_id, traceparent)

    async def embed(
        self,
        image: ImageInput,
        *,
        pipeline: str = "embed",
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Embedding:
        """What the network makes of one image as a vector; options and errors as of ``classify``."""
        return await self._answer(Embedding, pipeline, image, parameters, timeout_s, request_id, traceparent)

    async def segment(
        self,
        image: ImageInput,
        *,
        pipeline: str = "segment",
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Segmentation:
        """What each pixel of one image shows; options and errors as of ``classify``."""
        return await self._answer(Segmentation, pipeline, image, parameters, timeout_s, request_id, traceparent)

    async def read(
        self,
        image: ImageInput,
        *,
        pipeline: str = "read",
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Reading:
        """The text in one image, its lines in reading order; options and errors as of ``classify``."""
        return await self._answer(Reading, pipeline, image, parameters, timeout_s, request_id, traceparent)

    async def predict(
        self,
        image: ImageInput,
        *,
        pipeline: str,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Result:
        """What a pipeline of any kind answers to one image: the result of ``classify``, ``detect``, …, or ``Outputs``.

        Options and errors are as of ``classify``.
        """
        metadata = calls.request_metadata(request_id, traceparent, self._priority, parameters)
        tensors, latency_ms = await self._infer(pipeline, image, timeout_s, metadata, needs_kind=True)
        with calls.attach_request_id(metadata):
            return kinds.read(self._limits[pipeline].kind, pipeline, tensors, metadata.request_id, latency_ms)

    def predict_many(
        self,
        images: Iterable[ImageInput] | AsyncIterable[ImageInput],
        *,
        pipeline: str,
        in_flight: int = 8,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Item[Result], None]:
        """What a pipeline of any kind answers to every image, as ``classify_many``."""
        return self._many(
            images,
            lambda image: self.predict(image, pipeline=pipeline, parameters=parameters, timeout_s=timeout_s),
            in_flight,
            parameters,
            timeout_s,
        )

    async def infer(
        self,
        model: str,
        image: ImageInput,
        *,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Tensors:
        """The raw outputs of any model whose input is an encoded image: name → array with batch dimension 1.

        BYTES outputs are object arrays of ``bytes``. ``request_id`` and ``traceparent`` are as of ``classify``. Raises
        the errors of ``onestream.client.errors``.
        """
        metadata = calls.request_metadata(request_id, traceparent, self._priority, parameters)
        tensors, _ = await self._infer(model, image, timeout_s, metadata)
        return tensors

    def stream(
        self,
        source: VideoInput,
        *,
        pipeline: str = "classify",
        mode: Mode | None = None,
        results: int = 16,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        reconnect: Reconnect | None = None,
        tap: Callable[[Packet], None] | None = None,
        sound: Sound | None = None,
    ) -> Stream:
        """The results of a video's frames, in order, while it is still running. gRPC only.

        ``source``
            A file's path, ``rtsp://…``, ``/dev/video…``, the bytes of a file, a binary file object, or a source of
            ``onestream.client.video``. It is sent as it is encoded, and decoded by the server. Needs
            PyAV, which the extra ``video`` installs.
        ``mode``
            ``"block"``: the faster side waits, and no frame is lost. ``"drop_oldest"``: the latency is bounded, and
            frames that would wait too long are dropped and counted. By default the first for what can wait, files, and
            the second for what cannot, cameras.
        ``results``
            How many results may wait for the caller. A caller that is slower holds the stream back, or loses frames,
            but never fills memory.
        ``parameters``
            Numbers in the place of options of the pipeline, for every frame, as of ``classify``. BadStream is raised
            where the pipeline does not take them.
        ``timeout_s``
            The longest wait for the server's next step, when it is its turn: that it opens the stream, takes packets or
            gives results. By default that of the client.
        ``reconnect``
            Whether a lost connection is made again. By default that of an RTSP source or a webcam is.
        ``tap``
            Called with every packet that is sent, by another thread, which it must not hold up.
        ``sound``
            Takes the source's sound, for a ``VideoWriter`` that writes a file of the frames. It is not sent.

        Nothing is opened before the stream is entered (``with`` or ``async with``) or iterated; then the errors of
        ``onestream.client.errors`` are raised, among them UnreadableInput for the source (TruncatedInput, after the
        last result, for a file that was cut short) and BadStream for a stream that the server refuses or ends. Raises
        UnsupportedInput at once for what is no source.
        """
        return calls.open_stream(
            self._link.for_streams,
            source,
            url=self.url,
            pipeline=pipeline,
            mode=mode,
            results=results,
            timeout_s=self._deadline(timeout_s).timeout_s,
            reconnect=reconnect,
            tap=tap,
            sound=sound,
            parameters=parameters,
        )

    async def max_body_bytes(self, model: str = "classify", *, timeout_s: float | None = None) -> int:
        """The largest encoded image, in bytes, that this client sends to the model."""
        return (await self._limits_of(model, self._deadline(timeout_s))).body_bytes

    async def default_timeout_s(self, model: str = "classify", *, timeout_s: float | None = None) -> float:
        """Seconds that one image may take for the model where its call does not say it."""
        if self._timeout_s is not None:
            return self._timeout_s
        return (await self._limits_of(model, self._deadline(timeout_s))).timeout_s

    async def is_ready(self, model: str | None = None, *, timeout_s: float | None = None) -> bool:
        """Whether the server, or this model, says that it is ready; False also when nothing answers."""
        self._link.check()
        try:
            return await self._link.transport.is_ready(model, timeout_s=self._deadline(timeout_s).timeout_s)
        except NOT_READY:
            return False

    async def wait_until_ready(self, model: str | None = None, *, timeout_s: float = 30.0) -> None:
        """Return as soon as the server, or this model, is ready.

        Raises CannotConnect when nothing answered within ``timeout_s``, TimedOut when it was not ready by then.
        """
        self._link.check()
        deadline = self._deadline(timeout_s)
        while True:
            seen: OnestreamError | None = None
            # A pause may have taken longer than asked, on a busy machine longer than there was time.
            left_s = max(deadline.remaining_s(), READY_PAUSE_S)
            try:
                if await self._link.transport.is_ready(model, timeout_s=left_s):
                    return
            except NOT_READY as error:
                seen = error
            if deadline.remaining_s() <= READY_PAUSE_S:
                raise calls.not_ready(model, self.url, timeout_s, seen)
            await sleep(READY_PAUSE_S)

    async def server_info(self, *, timeout_s: float | None = None) -> ServerInfo:
        """Name, version and extensions of the server."""
        self._link.check()
        fields = await self._retried(
            lambda left_s: self._link.transport.server_metadata(timeout_s=left_s), self._deadline(timeout_s)
        )
        return calls.server_info(self.url, fields)

    async def statistics(self, model: str = "classify", *, timeout_s: float | None = None) -> ModelStatistics:
        """The server's statistics of the model since it was loaded; of an ensemble also those of its steps."""
        deadline = self._deadline(timeout_s)
        config = await self._config(model, deadline)
        steps = [
            ModelStatistics.from_wire(name, await self._statistics_rows(name, deadline))
            for name in calls.step_names(config)
        ]
        return ModelStatistics.from_wire(model, await self._statistics_rows(model, deadline), steps=tuple(steps))

    async def close(self) -> None:
        """End the connection, every call and every stream, and remove shared memory. May be called twice."""
        await self._link.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        memory = ", shared_memory=True" if self._link.has_regions else ""
        return f"AsyncClient({self.url!r}, timeout_s={self._timeout_s}{memory})"

    def _many(
        self,
        images: Iterable[ImageInput] | AsyncIterable[ImageInput],
        call: Callable[[ImageInput], Coroutine[Any, Any, ResultT]],
        in_flight: int,
        parameters: Mapping[str, float] | None,
        timeout_s: float | None,
    ) -> AsyncGenerator[Item[ResultT], None]:
        calls.check_many(images, in_flight=in_flight, parameters=parameters, timeout_s=timeout_s)

        async def one(indexed: tuple[int, ImageInput]) -> Item[ResultT]:
            index, image = indexed
            try:
                return Item(index, image, result=await call(image))
            except ClientClosed:
                raise
            except OnestreamError as error:
                return Item(index, image, error=error)

        return map_in_order_aio(one, numbered_aio(images), in_flight=in_flight)

    async def _answer(
        self,
        result: type[ResultT],
        pipeline: str,
        image: ImageInput,
        parameters: Mapping[str, float] | None,
        timeout_s: float | None,
        request_id: str | None,
        traceparent: str | None,
    ) -> ResultT:
        """The result of a kind in a pipeline's outputs for one image."""
        metadata = calls.request_metadata(request_id, traceparent, self._priority, parameters)
        tensors, latency_ms = await self._infer(pipeline, image, timeout_s, metadata)
        with calls.attach_request_id(metadata):
            return result.from_tensors(pipeline, tensors, metadata.request_id, latency_ms)

    async def _infer(
        self,
        model: str,
        image: ImageInput,
        timeout_s: float | None,
        metadata: RequestMetadata,
        *,
        needs_kind: bool = False,
    ) -> tuple[Tensors, float]:
        """Outputs and latency in milliseconds. With ``needs_kind`` the model's configuration has then been read."""
        with calls.attach_request_id(metadata):
            self._link.check()
            deadline = self._deadline(timeout_s)
            limits = await self._limits_of(model, deadline, needs_kind=needs_kind)
            deadline.default_to(limits.timeout_s)
            send = self._send_by_region if self._link.has_regions else self._send
            return await send(model, image, limits, metadata, deadline)

    async def _send(
        self, model: str, image: ImageInput, limits: Limits, metadata: RequestMetadata, deadline: Deadline
    ) -> tuple[Tensors, float]:
        data = await encoded_bytes(image, max_body_bytes=limits.body_bytes)
        request = InferRequest(model, metadata, data, limits.answer_bytes)
        started = monotonic()
        tensors = await self._retried(lambda left_s: self._link.transport.infer(request, timeout_s=left_s), deadline)
        return tensors, (monotonic() - started) * 1e3

    async def _send_by_region(
        self, model: str, image: ImageInput, limits: Limits, metadata: RequestMetadata, deadline: Deadline
    ) -> tuple[Tensors, float]:
        encoded = await encode(image, max_body_bytes=limits.body_bytes)
        async with self._link.filled(encoded, timeout_s=deadline.remaining_s()) as slot:
            request = slot.request(model, metadata, max_answer_bytes=limits.answer_bytes)
            started = monotonic()
            tensors = await self._retried(lambda left_s: self._link.infer(slot, request, timeout_s=left_s), deadline)
            return tensors, (monotonic() - started) * 1e3

    async def _limits_of(self, model: str, deadline: Deadline, *, needs_kind: bool = False) -> Limits:
        own = None if self._max_body_bytes is None else Limits(self._max_body_bytes, self._max_answer_bytes)
        if own is not None and not needs_kind:
            return own
        if model not in self._limits:
            config = await self._config(model, deadline)
            self._limits[model] = limits_of(config, max_answer_bytes=self._max_answer_bytes)
        return own or self._limits[model]

    async def _config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        self._link.check()
        return await self._retried(lambda left_s: self._link.transport.model_config(model, timeout_s=left_s), deadline)

    async def _statistics_rows(self, model: str, deadline: Deadline) -> Iterable[Mapping[str, Any]]:
        return await self._retried(
            lambda left_s: self._link.transport.model_statistics(model, timeout_s=left_s), deadline
        )

    async def _retried(self, call: Callable[[float], Awaitable[_T]], deadline: Deadline) -> _T:
        """``call(remaining_s)`` until it succeeds, fails for good, or no time is left to wait for."""
        attempt = 0
        while True:
            try:
                return await call(deadline.require_s())
            except OnestreamError as error:
                delay_s = self._retries.delay_s(error, attempt)
                if delay_s is None or delay_s >= deadline.remaining_s():
                    raise
            await sleep(delay_s)
            attempt += 1

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else positive("timeout_s", timeout_s))
