"""The server of ``client_fakes`` for an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from client_fakes import FakeTransport, classification, echo_size

from onestream.client import BadImage, Tensors

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

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.fake, name)
        if not callable(member):
            return member

        async def call(*arguments: Any, **options: Any) -> Any:
            if self._in_threads and name == "infer":
                return await asyncio.to_thread(member, *arguments, **options)
            answered = member(*arguments, **options)
            return await answered if inspect.isawaitable(answered) else answered

        return call


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
