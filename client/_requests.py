# Made of _requests_aio.py by `make sync`: change that.
"""How requests to one server are made, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, TypeVar

import numpy as np

from onestream.client import calls, fields
from onestream.client._link import Link, encode, encoded_bytes, filled, sleep, whole
from onestream.client._transports.base import DEFAULT_MAX_ANSWER_BYTES, Address, InferRequest, RequestMetadata, Tensors
from onestream.client._transports.refusals import RegionForgotten
from onestream.client._transports.shared_memory import RegionPool
from onestream.client._transports.transport import Transport
from onestream.client.calls import NOT_READY, READY_PAUSE_S, Limits, limits_of, positive
from onestream.client.errors import OnestreamError, UnsupportedInput
from onestream.client.images import ImageInput
from onestream.client.retries import Deadline, Retries
from onestream.client.statistics import ModelStatistics, ServerInfo
from onestream.wire.limits import DEFAULT_URL
from onestream.wire.priority import Priority, check_priority

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Requests")


class Requests:
    """Requests to the models of one server: their limits, deadlines and repetitions; and questions about the server."""

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
        transport: Transport | None = None,
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
        self._link = Link(
            transport
            or Address.parse(
                url,
                token=token,
                connect_timeout_s=positive("connect_timeout_s", connect_timeout_s),
                max_answer_bytes=self._max_answer_bytes,
            ),
            shared_memory=shared_memory,
        )

    @property
    def url(self) -> str:
        """The server's address in full, such as ``grpc://127.0.0.1:8001``."""
        return self._link.transport.url

    def max_body_bytes(self, model: str = "classify", *, timeout_s: float | None = None) -> int:
        """The largest encoded image, in bytes, that this client sends to the model."""
        return (self._limits_of(model, self._deadline(timeout_s))).body_bytes

    def default_timeout_s(self, model: str = "classify", *, timeout_s: float | None = None) -> float:
        """Seconds that one image may take for the model where its call does not say it."""
        if self._timeout_s is not None:
            return self._timeout_s
        return (self._limits_of(model, self._deadline(timeout_s))).timeout_s

    def is_ready(self, model: str | None = None, *, timeout_s: float | None = None) -> bool:
        """Whether the server, or this model, says that it is ready; False also when nothing answers."""
        self._link.check()
        try:
            return self._link.transport.is_ready(model, timeout_s=self._deadline(timeout_s).timeout_s)
        except NOT_READY:
            return False

    def wait_until_ready(self, model: str | None = None, *, timeout_s: float = 30.0) -> None:
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
                if self._link.transport.is_ready(model, timeout_s=left_s):
                    return
            except NOT_READY as error:
                seen = error
            if deadline.remaining_s() <= READY_PAUSE_S:
                raise calls.not_ready(model, self.url, timeout_s, seen)
            sleep(READY_PAUSE_S)

    def server_info(self, *, timeout_s: float | None = None) -> ServerInfo:
        """Name, version and extensions of the server."""
        self._link.check()
        said = self._retried(
            lambda left_s: self._link.transport.server_metadata(timeout_s=left_s), self._deadline(timeout_s)
        )
        return ServerInfo.from_wire(self.url, said)

    def models(self, *, timeout_s: float | None = None) -> list[str]:
        """The names of the models that the server has loaded, in order."""
        # The index of the repository may be closed to callers; statistics name what is loaded.
        rows = self._statistics_rows("", self._deadline(timeout_s))
        return sorted({fields.text(row.get("name"), "the name of a model") for row in rows})

    def model_config(self, model: str, *, timeout_s: float | None = None) -> Mapping[str, Any]:
        """The model's configuration, with the field names of Triton's ``model_config.proto``."""
        return self._config(model, self._deadline(timeout_s))

    def statistics(self, model: str = "classify", *, timeout_s: float | None = None) -> ModelStatistics:
        """The server's statistics of the model since it was loaded; of an ensemble also those of its steps."""
        deadline = self._deadline(timeout_s)
        config = self._config(model, deadline)
        steps = [
            ModelStatistics.from_wire(name, self._statistics_rows(name, deadline)) for name in calls.step_names(config)
        ]
        return ModelStatistics.from_wire(model, self._statistics_rows(model, deadline), steps=tuple(steps))

    def close(self) -> None:
        """End the connection, every call and every stream, and remove shared memory. May be called twice."""
        self._link.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        memory = "" if self._link.regions is None else ", shared_memory=True"
        return f"{type(self).__name__}({self.url!r}, timeout_s={self._timeout_s}{memory})"

    def _infer(
        self,
        model: str,
        image: ImageInput | None,
        timeout_s: float | None,
        metadata: RequestMetadata,
        *,
        arrays: Tensors | None = None,
        inputs: calls.Inputs | None = None,
    ) -> tuple[Tensors, float]:
        """Outputs and latency in milliseconds; ``arrays`` are inputs beside ``image``, if there is one.

        With ``inputs`` the model's configuration has then been read, and they have become arrays as it says.
        """
        with calls.attach_request_id(metadata):
            self._link.check()
            deadline = self._deadline(timeout_s)
            limits = self._limits_of(model, deadline, needs_config=inputs is not None)
            deadline.default_to(limits.timeout_s)
            own = arrays or {}
            if inputs is not None:
                declared = self._limits[model]
                try:
                    own = calls.network_inputs(inputs, declared, pipeline=model)
                except UnsupportedInput:
                    # Another version of the model may be served since its configuration was read.
                    declared = self._read_limits(model, deadline)
                    own = calls.network_inputs(inputs, declared, pipeline=model)
                for name in declared.pictures:
                    with calls.named(name):
                        own[name] = np.frombuffer(encoded_bytes(inputs[name], limits), np.uint8)[None]
            if self._link.regions is None or image is None:
                return self._send(model, image, limits, metadata, deadline, own)
            return self._send_by_region(self._link.regions, model, image, limits, metadata, deadline, own)

    def _send(
        self,
        model: str,
        image: ImageInput | None,
        limits: Limits,
        metadata: RequestMetadata,
        deadline: Deadline,
        arrays: Tensors,
    ) -> tuple[Tensors, float]:
        data = None if image is None else encoded_bytes(image, limits)
        request = InferRequest(model, metadata, data, limits.answer_bytes, arrays)
        started = monotonic()
        tensors = self._retried(lambda left_s: self._link.transport.infer(request, timeout_s=left_s), deadline)
        return tensors, (monotonic() - started) * 1e3

    def _send_by_region(
        self,
        regions: RegionPool,
        model: str,
        image: ImageInput,
        limits: Limits,
        metadata: RequestMetadata,
        deadline: Deadline,
        arrays: Tensors,
    ) -> tuple[Tensors, float]:
        encoded = encode(image, limits)
        with filled(regions, encoded, timeout_s=deadline.remaining_s()) as slot:
            request = slot.request(model, metadata, max_answer_bytes=limits.answer_bytes, arrays=arrays)

            def send(left_s: float) -> Tensors:
                """Let the server map the region where it does not know it, or no longer."""
                end = monotonic() + left_s
                if slot.is_registered:
                    try:
                        return self._link.transport.infer(request, timeout_s=left_s)
                    except RegionForgotten:
                        slot.is_registered = False
                whole(lambda: regions.register(slot, timeout_s=end - monotonic()))
                return self._link.transport.infer(request, timeout_s=end - monotonic())

            started = monotonic()
            tensors = self._retried(send, deadline)
            return tensors, (monotonic() - started) * 1e3

    def _limits_of(self, model: str, deadline: Deadline, *, needs_config: bool = False) -> Limits:
        own = None if self._max_body_bytes is None else Limits(self._max_body_bytes, self._max_answer_bytes)
        if own is not None and not needs_config:
            return own
        found = self._limits.get(model) or self._read_limits(model, deadline)
        return own or found

    def _read_limits(self, model: str, deadline: Deadline) -> Limits:
        config = self._config(model, deadline)
        found = self._limits[model] = limits_of(config, max_answer_bytes=self._max_answer_bytes)
        return found

    def _config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        self._link.check()
        return self._retried(lambda left_s: self._link.transport.model_config(model, timeout_s=left_s), deadline)

    def _statistics_rows(self, model: str, deadline: Deadline) -> Iterable[Mapping[str, Any]]:
        return self._retried(lambda left_s: self._link.transport.model_statistics(model, timeout_s=left_s), deadline)

    def _retried(self, call: Callable[[float], _T], deadline: Deadline) -> _T:
        """``call(remaining_s)`` until it succeeds, fails for good, or no time is left to wait for."""
        attempt = 0
        while True:
            try:
                return call(deadline.require_s())
            except OnestreamError as error:
                delay_s = self._retries.delay_s(error, attempt)
                if delay_s is None or delay_s >= deadline.remaining_s():
                    raise
            sleep(delay_s)
            attempt += 1

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else positive("timeout_s", timeout_s))
