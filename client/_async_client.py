"""The client for programs that run an event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any

from onestream.client import calls, kinds
from onestream.client._transports import open_async_transport, open_transport
from onestream.client._transports.base import (
    DEFAULT_MAX_ANSWER_BYTES,
    InferRequest,
    RequestMetadata,
    Tensors,
)
from onestream.client._transports.shared_memory import RegionPool, shut_down
from onestream.client._transports.shared_memory_aio import AsyncRegions
from onestream.client._transports.transport import Transport
from onestream.client._transports.transport_aio import AsyncTransport
from onestream.client.calls import DEFAULT_URL, NOT_READY, READY_PAUSE_S, Limits, limits_of, positive
from onestream.client.errors import ClientClosed, OnestreamError
from onestream.client.images import ImageInput, encode
from onestream.client.kinds import Classification, Detections, Embedding, Reading, Result, Segmentation
from onestream.client.kinds.base import ResultT
from onestream.client.ordered import map_in_order_async
from onestream.client.results import Item, ServerInfo
from onestream.client.retries import Deadline, Retries
from onestream.client.statistics import ModelStatistics
from onestream.client.video.reconnect import Reconnect
from onestream.client.video.sound import Sound
from onestream.client.video.sources import VideoInput
from onestream.client.video.stream import Stream
from onestream.wire.priority import Priority, check_priority
from onestream.wire.video import Mode, Packet


class AsyncClient:
    """``Client`` for asyncio: the same calls, options, results and errors, awaited.

    A task that is cancelled while it waits ends its request: over gRPC Triton then drops it from its queue. One
    client may be used by many tasks of one event loop, the one that runs at its first call. Close it, or use it with
    ``async with``.
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
        """Options as of ``Client``. A ``transport`` that is given has no regions."""
        if shared_memory and transport is not None:
            raise ValueError("shared_memory=True, which needs an address; expected no transport")
        self._timeout_s = None if timeout_s is None else positive("timeout_s", timeout_s)
        if max_body_bytes is not None:
            positive("max_body_bytes", max_body_bytes)
        self._max_body_bytes = max_body_bytes
        self._max_answer_bytes = int(positive("max_answer_bytes", max_answer_bytes))
        self._limits: dict[str, Limits] = {}
        self._priority = check_priority(priority)
        self._retries = Retries(at_most=retries, when_overloaded=retry_overloaded)
        self._connect_timeout_s = positive("connect_timeout_s", connect_timeout_s)
        self._token = token
        self._transport = transport or open_async_transport(
            url, connect_timeout_s=connect_timeout_s, token=token, max_answer_bytes=self._max_answer_bytes
        )
        self._is_own_transport = transport is None
        self._threads: tuple[Transport, RegionPool] | None = None
        self._end_threads: Callable[[], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._regions = AsyncRegions(self._for_threads()[1], self._transport) if shared_memory else None

    @property
    def url(self) -> str:
        """The server's address in full, such as ``grpc://127.0.0.1:8001``."""
        return self._transport.url

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
        """The classes of one image, best first; as ``Client.classify``. Files are read by another thread."""
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
        """The classes of every image, for ``async for``; as ``Client.classify_many``.

        ``images`` may be asynchronous as well; a plain iterable is read by the event loop and should not block. Where
        the iteration is left early, ``aclose()`` of what is returned (or ``contextlib.aclosing``) cancels at once what
        is in flight.
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
        """The objects in one image; as ``Client.detect``."""
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
        """One image as a vector; as ``Client.embed``."""
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
        """What each pixel of one image shows; as ``Client.segment``."""
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
        """The text in one image; as ``Client.read``."""
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
        """What a pipeline of any kind answers to one image; as ``Client.predict``."""
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
        """The raw outputs of any model whose input is an encoded image; as ``Client.infer``."""
        return (
            await self._infer(
                model, image, timeout_s, calls.request_metadata(request_id, traceparent, self._priority, parameters)
            )
        )[0]

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
        """The results of a video's frames, for ``async with`` and ``async for``; options as of ``Client.stream``."""
        if self._closed:
            raise ClientClosed(f"the client of {self.url} is closed")
        return calls.open_stream(
            self._for_threads()[0] if self._is_own_transport else self._transport,
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
        self._check_usable()
        try:
            return await self._transport.is_ready(model, timeout_s=self._deadline(timeout_s).timeout_s)
        except NOT_READY:
            return False

    async def wait_until_ready(self, model: str | None = None, *, timeout_s: float = 30.0) -> None:
        """Return as soon as the server, or this model, is ready.

        Raises CannotConnect when nothing answered within ``timeout_s``, TimedOut when it was not ready by then.
        """
        self._check_usable()
        deadline = self._deadline(timeout_s)
        while True:
            seen: OnestreamError | None = None
            try:
                if await self._transport.is_ready(model, timeout_s=deadline.remaining_s()):
                    return
            except NOT_READY as error:
                seen = error
            if deadline.remaining_s() <= READY_PAUSE_S:
                raise calls.not_ready(model, self.url, timeout_s, seen)
            await asyncio.sleep(READY_PAUSE_S)

    async def server_info(self, *, timeout_s: float | None = None) -> ServerInfo:
        """Name, version and extensions of the server."""
        self._check_usable()
        fields = await self._retries.run_async(
            lambda left_s: self._transport.server_metadata(timeout_s=left_s), self._deadline(timeout_s)
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
        self._closed = True
        await self._transport.close()
        if self._end_threads is not None:
            await asyncio.to_thread(self._end_threads)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        memory = ", shared_memory=True" if self._regions is not None else ""
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

        numbered = _enumerate(images) if isinstance(images, AsyncIterable) else enumerate(images)
        return map_in_order_async(one, numbered, in_flight=in_flight)

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
            deadline = self._deadline(timeout_s)
            limits = await self._limits_of(model, deadline, needs_kind=needs_kind)
            deadline.default_to(limits.timeout_s)
            self._check_usable()
            if self._regions is not None:
                return await self._send_by_region(self._regions, model, image, limits, metadata, deadline)
            return await self._send(model, image, limits, metadata, deadline)

    async def _send(
        self, model: str, image: ImageInput, limits: Limits, metadata: RequestMetadata, deadline: Deadline
    ) -> tuple[Tensors, float]:
        request = InferRequest(model, metadata, await _to_bytes(image, limits.body_bytes), limits.answer_bytes)
        started = monotonic()
        tensors = await self._retries.run_async(
            lambda left_s: self._transport.infer(request, timeout_s=left_s), deadline
        )
        return tensors, (monotonic() - started) * 1e3

    async def _send_by_region(
        self,
        regions: AsyncRegions,
        model: str,
        image: ImageInput,
        limits: Limits,
        metadata: RequestMetadata,
        deadline: Deadline,
    ) -> tuple[Tensors, float]:
        encoded = await asyncio.to_thread(encode, image, max_body_bytes=limits.body_bytes)
        async with regions.filled(encoded, timeout_s=deadline.remaining_s()) as slot:
            request = slot.request(model, metadata, max_answer_bytes=limits.answer_bytes)
            started = monotonic()
            tensors = await self._retries.run_async(
                lambda left_s: regions.infer(slot, request, timeout_s=left_s), deadline
            )
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
        self._check_usable()
        return await self._retries.run_async(
            lambda left_s: self._transport.model_config(model, timeout_s=left_s), deadline
        )

    async def _statistics_rows(self, model: str, deadline: Deadline) -> Iterable[Mapping[str, Any]]:
        return await self._retries.run_async(
            lambda left_s: self._transport.model_statistics(model, timeout_s=left_s), deadline
        )

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else positive("timeout_s", timeout_s))

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosed(f"the client of {self.url} is closed")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("this AsyncClient belongs to another event loop; make one in each")
        self._loop = loop

    def _for_threads(self) -> tuple[Transport, RegionPool]:
        """A connection and regions that threads may use: streams, and making regions, run in threads of their own."""
        if self._threads is None:
            transport = open_transport(
                self.url,
                connect_timeout_s=self._connect_timeout_s,
                token=self._token,
                max_answer_bytes=self._max_answer_bytes,
            )
            self._threads = transport, RegionPool(transport)
            # Also runs when the interpreter ends, so no shared memory stays behind.
            self._end_threads = weakref.finalize(self, shut_down, self._threads[1], transport, os.getpid())
        return self._threads


async def _to_bytes(image: ImageInput, max_body_bytes: int) -> bytes:
    """The encoded image. Reading files and encoding pixels takes a thread, so that the event loop goes on."""
    if isinstance(image, bytes):
        return encode(image, max_body_bytes=max_body_bytes).to_bytes()
    return await asyncio.to_thread(lambda: encode(image, max_body_bytes=max_body_bytes).to_bytes())


async def _enumerate(images: AsyncIterable[ImageInput]) -> AsyncGenerator[tuple[int, ImageInput], None]:
    index = 0
    async for image in images:
        yield index, image
        index += 1
