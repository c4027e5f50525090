"""Both clients behind one surface, so that what they share is tested once for both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from async_fakes import AsyncFakeTransport
from client_fakes import FakeTransport, kind_of

from onestream.client import AsyncClient, Client, Tensors

Connect = Callable[..., Any]
"""Opens a client as ``Client`` does: of an address, or with ``transport``, a FakeTransport."""


class Waiting:
    """``AsyncClient`` with the surface of ``Client``: each call waits for an event loop in another thread."""

    def __init__(self, *address: str, transport: FakeTransport | None = None, **options: Any) -> None:
        if transport is not None:
            options["transport"] = AsyncFakeTransport(fake=transport, in_threads=True)
        self._client = AsyncClient(*address, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)
        if not callable(member):
            return member

        def call(*arguments: Any, **options: Any) -> Any:
            answer = member(*arguments, **options)
            if inspect.isawaitable(answer):
                return self._wait(answer)
            return self._iterate(answer) if hasattr(answer, "__anext__") else answer

        return call

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._wait(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def close(self) -> None:
        self._wait(self._client.close())

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(items)

        try:
            while True:
                try:
                    item = self._wait(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not self._loop.is_closed():
                self._wait(items.aclose())  # type: ignore[attr-defined]

    def _wait(self, awaitable: Any) -> Any:
        async def done() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result()


CLIENTS: dict[str, Connect] = {"sync": Client, "async": Waiting}


def asked(tensors: Tensors, call: str, connect: Connect = Client) -> Any:
    """What a call of a client, such as *detect* or *predict*, returns where the server answers these tensors."""
    with connect(transport=FakeTransport(lambda *_: tensors, kinds={"any": kind_of(tensors)})) as client:
        return client.predict(b"image", pipeline="any") if call == "predict" else getattr(client, call)(b"image")
