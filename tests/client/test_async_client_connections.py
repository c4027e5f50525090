"""AsyncClient at addresses where nobody answers, or somebody else does; and HTTP in detail."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from patience import NEVER_S, ended
from test_client_connections import always, answer, listening, read_request, silence, tensors

from onestream.client import (
    AsyncClient,
    BadImage,
    CannotConnect,
    ClientClosed,
    ModelNotFound,
    ServerOverloaded,
    ServerRefused,
    ServerUnavailable,
    TimedOut,
    UnexpectedResponse,
)

_T = TypeVar("_T")


def with_client(url: str, work: Callable[[AsyncClient], Awaitable[_T]], **options: Any) -> _T:
    """What ``work`` returns for a client of ``url``."""

    async def main() -> _T:
        async with AsyncClient(url, **options) as client:
            return await work(client)

    return asyncio.run(main())


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_refused_connection_is_not_a_timeout(scheme: str, free_port: int) -> None:
    with pytest.raises(CannotConnect) as caught:
        with_client(f"{scheme}://127.0.0.1:{free_port}", lambda client: client.classify(b"image"))
    assert f"{scheme}://127.0.0.1:{free_port}" in str(caught.value)
    assert "refused" in str(caught.value).lower() or "connect call failed" in str(caught.value).lower()
    assert "expected a Triton server" in str(caught.value)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_unknown_host_cannot_be_connected(scheme: str) -> None:
    with pytest.raises(CannotConnect, match=r"no-such-host"):
        with_client(f"{scheme}://no-such-host.invalid", lambda client: client.classify(b"image", timeout_s=5))


def test_http_connects_within_the_connect_timeout() -> None:
    """A listener whose queue is full lets nobody in."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        crowd = [socket.socket() for _ in range(8)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        for short, long in (("connect_timeout_s", "timeout_s"), ("timeout_s", "connect_timeout_s")):
            options = {short: 0.3, long: NEVER_S, "retries": 0}
            call = partial(with_client, f"http://127.0.0.1:{port}", lambda one: one.classify(b"image"), **options)
            # What is named is what was left of the 0.3 s when connecting began.
            with pytest.raises(CannotConnect, match=r"no connection within 0\.\d+ s"):
                ended(call)
        for one in crowd:
            one.close()


def test_grpc_gives_up_connecting_after_the_connect_timeout() -> None:
    with listening(silence) as port, pytest.raises(CannotConnect):
        with_client(
            f"127.0.0.1:{port}",
            lambda client: client.classify(b"image", timeout_s=NEVER_S),
            connect_timeout_s=0.5,
            retries=0,
        )


def test_http_that_never_answers_is_a_timeout() -> None:
    with listening(silence) as port, pytest.raises(TimedOut, match=r"within 0\.\d+ s"):
        with_client(f"http://127.0.0.1:{port}", lambda client: client.classify(b"image", timeout_s=0.5))


def test_ports_mixed_up_say_what_was_expected() -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
        silence(connection)

    with listening(greet) as port, pytest.raises(CannotConnect, match="speaks HTTP"):
        with_client(f"http://127.0.0.1:{port}", lambda client: client.classify(b"image"), retries=0)
    with listening(always(answer(400, b"what"))) as port, pytest.raises(CannotConnect, match="speaks gRPC"):
        with_client(f"127.0.0.1:{port}", lambda client: client.classify(b"image"), retries=0)


def test_an_idle_connection_that_the_server_closed_is_replaced_without_a_retry() -> None:
    connections = 0

    def one_answer_each(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        read_request(connection)
        connection.sendall(tensors())

    async def work(client: AsyncClient) -> None:
        for _ in range(3):
            assert (await client.classify(b"image")).top.label == "label"
            # The loop stands still, so the end of the connection is not noticed before the next request.
            time.sleep(0.1)

    with listening(one_answer_each) as port:
        with_client(f"http://127.0.0.1:{port}", work, retries=0, max_body_bytes=100)
    assert connections == 3


def test_connections_are_used_again() -> None:
    connections = 0

    def count(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        always(tensors())(connection)

    async def work(client: AsyncClient) -> None:
        async for item in client.classify_many([b"image"] * 50, in_flight=3):
            item.unwrap()

    with listening(count) as port:
        with_client(f"http://127.0.0.1:{port}", work, retries=0, max_body_bytes=100)
    assert 1 <= connections <= 3


def test_cancelling_closes_the_http_connection() -> None:
    begun, ended = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        begun.set()
        # Returns when the other side has closed.
        silence(connection)
        ended.set()

    async def work(client: AsyncClient) -> None:
        task = asyncio.ensure_future(client.classify(b"image", timeout_s=60))
        assert await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, 10)

    with listening(serve) as port:
        with_client(f"http://127.0.0.1:{port}", work, max_body_bytes=100)


def test_closing_ends_calls_in_progress() -> None:
    async def work(client: AsyncClient) -> None:
        task = asyncio.ensure_future(client.classify(b"image", timeout_s=60))
        await asyncio.sleep(0.3)
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(task, 10)

    with listening(silence) as port:
        with_client(f"http://127.0.0.1:{port}", work, retries=0, max_body_bytes=100)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (answer(400, b'{"error": "bad image (empty): 0 bytes"}'), BadImage),
        (answer(404, b'{"error": "Request for unknown model: \'x\' is not found"}'), ModelNotFound),
        (answer(429, b"slow down"), ServerOverloaded),
        (answer(302, b"", "Location: http://127.0.0.1:1/\r\n"), ServerRefused),
        (answer(502, b"<html>bad gateway"), ServerUnavailable),
        (answer(504, b"<html>gateway timeout"), TimedOut),
        (answer(200, b"<html>hello"), UnexpectedResponse),
        (tensors(datatype="BF16"), UnexpectedResponse),
        (tensors(parameters={"binary_data_size": 1000}), UnexpectedResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort", CannotConnect),
    ],
)
def test_answers_of_servers_and_proxies(response: bytes, kind: type[Exception]) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(response)

    with listening(serve) as port, pytest.raises(kind) as caught:
        with_client(f"http://127.0.0.1:{port}", lambda client: client.classify(b"image"), retries=0, max_body_bytes=100)
    assert type(caught.value) is kind


def test_a_proxy_that_refuses_a_large_body_before_it_has_read_it() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer(413, b"<html>too large", "Connection: close\r\n"))
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.5)

    with listening(refuse) as port, pytest.raises(BadImage) as caught:
        with_client(
            f"http://127.0.0.1:{port}",
            lambda client: client.classify(bytes(20_000_000)),
            retries=0,
            max_body_bytes=1 << 30,
        )
    assert caught.value.code == "too_large"


def test_http_without_aiohttp_names_what_to_install() -> None:
    script = """
        import sys
        sys.modules["aiohttp"] = None
        from onestream.client import AsyncClient
        AsyncClient("127.0.0.1:8001")
        try:
            AsyncClient("http://127.0.0.1:8000")
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert "pip install '.[async]'" in done.stdout, done.stderr
