"""The server of ``client_fakes`` for an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from client_fakes import FakeTransport, classification, echo_size

from onestream.client import BadImage, InferRequest, Tensors

Answer = Callable[[str, bytes], "Tensors | Awaitable[Tensors]"]


class AsyncFakeTransport:
    """Answers as ``fake``, a FakeTransport, does; ``answer`` may be a coroutine function.

    ``in_threads``: each request is answered in a thread of its own, so that an answer may wait.
    """

    def __init__(
        self, answer: Answer = echo_size, *, fake: FakeTransport | None = None, in_threads: bool = False, **options: Any
    ) -> None:
        self.fake = fake or FakeTransport(answer, **options)  # type: ignore[arg-type]
        self._in_threads = in_threads

    @property
    def url(self) -> str:
        return self.fake.url

    async def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        if self._in_threads:
            return await asyncio.to_thread(self.fake.infer, request, timeout_s=timeout_s)
        answered: Any = self.fake.infer(request, timeout_s=timeout_s)
        return await answered if inspect.isawaitable(answered) else answered

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


def refuse_bad(model: str, data: bytes) -> Tensors:
    if data.startswith(b"bad"):
        raise BadImage("corrupt", "as ordered")
    if data.startswith(b"odd"):
        return {"matte": np.zeros((1, 2, 2), np.float32)}
    return echo_size(model, data)


class Held:
    """Answers nothing, and counts who waits and who was cancelled."""

    def __init__(self) -> None:
        self.waiting = self.cancelled = 0

    async def __call__(self, _model: str, _data: bytes) -> Tensors:
        self.waiting += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return classification(("late", 0, 1.0))
