"""The server of ``client_fakes`` for an event loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from client_fakes import FakeTransport, echo_size

from client.transports.base import InferRequest, Tensors

Answer = Callable[[str, bytes], "Tensors | Awaitable[Tensors]"]


class AsyncFakeTransport:
    """Answers as ``fake``, a FakeTransport, does; ``answer`` may be a coroutine function."""

    def __init__(self, answer: Answer = echo_size, **options: Any) -> None:
        self.fake = FakeTransport(answer, **options)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        return self.fake.url

    async def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        answered: Any = self.fake.infer(request, timeout_s=timeout_s)
        tensors: Tensors = await answered if inspect.isawaitable(answered) else answered
        return tensors

    async def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        return self.fake.is_ready(model, timeout_s=timeout_s)

    async def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        return self.fake.server_metadata(timeout_s=timeout_s)

    async def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        return self.fake.model_config(model, timeout_s=timeout_s)

    async def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        return self.fake.model_statistics(model, timeout_s=timeout_s)

    async def close(self) -> None:
        self.fake.close()
