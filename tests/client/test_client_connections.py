"""Addresses where nobody answers, or somebody else does; and HTTP in detail."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from patience import NEVER_S, ended
from tritonclient.grpc import service_pb2, service_pb2_grpc

from onestream.client import (
    AsyncClient,
    BadImage,
    CannotConnect,
    Client,
    ClientClosed,
    ModelNotFound,
    ServerOverloaded,
    ServerUnavailable,
    TimedOut,
    UnexpectedResponse,
)

Script = Callable[[socket.socket], None]


@contextmanager
def listening(serve: Script) -> Iterator[int]:
    """A port where every connection is handed to ``serve`` in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def run(connection: socket.socket) -> None:
        try:
            serve(connection)
        except OSError:
            pass
        finally:
            connection.close()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=run, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            connection.close()


def read_request(connection: socket.socket) -> bytes:
    """One HTTP request with its body; empty when the other side hung up."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head + b"\r\n\r\n" + body


def answer(status: int, body: bytes, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def always(response: bytes) -> Script:
    def serve(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(response)

    return serve


def tensors(**changes: object) -> bytes:
    """A correct answer of a classification pipeline with one label, or one with changed fields."""
    outputs = [
        {"name": "scores", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
        {"name": "class_ids", "datatype": "INT32", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
        {"name": "labels", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 9}},
    ]
    outputs[0].update(changes)
    head = json.dumps({"outputs": outputs}).encode()
    body = head + b"\0\0\x80\x3f" + b"\7\0\0\0" + b"\5\0\0\0label"
    return answer(200, body, f"Inference-Header-Content-Length: {len(head)}\r\n")


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def silence(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_refused_connection_is_not_a_timeout(scheme: str, free_port: int) -> None:
    with Client(f"{scheme}://127.0.0.1:{free_port}") as client, pytest.raises(CannotConnect) as caught:
        ended(lambda: client.classify(b"image", timeout_s=NEVER_S))
    assert f"{scheme}://127.0.0.1:{free_port}" in str(caught.value)
    assert "refused" in str(caught.value)
    assert "expected a Triton server" in str(caught.value)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_unknown_host_cannot_be_connected(scheme: str) -> None:
    with Client(f"{scheme}://no-such-host.invalid") as client, pytest.raises(CannotConnect, match=r"no-such-host"):
        client.classify(b"image", timeout_s=5)


def test_grpc_gives_up_connecting_after_the_connect_timeout() -> None:
    with (
        listening(silence) as port,
        Client(f"127.0.0.1:{port}", connect_timeout_s=0.5, retries=0) as client,
        pytest.raises(CannotConnect),
    ):
        ended(lambda: client.classify(b"image", timeout_s=NEVER_S))


def test_a_grpc_server_that_comes_back_is_reached_by_the_next_call(free_port: int) -> None:
    """However long it was away: gRPC waits longer and longer between its attempts, in which calls fail at once."""

    answering = service_pb2_grpc.GRPCInferenceServiceServicer()
    answering.ServerMetadata = lambda _request, _context: service_pb2.ServerMetadataResponse(name="triton", version="1")

    def fails(client: Client, after_s: float) -> bool:
        time.sleep(after_s)
        with pytest.raises(CannotConnect):
            client.server_info()
        return True

    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(12))
        clients = [stack.enter_context(Client(f"127.0.0.1:{free_port}")) for _ in range(12)]
        assert all(threads.map(fails, clients, [0.2 * index for index in range(12)]))
        server = grpc.server(threads)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(answering, server)
        server.add_insecure_port(f"127.0.0.1:{free_port}")
        server.start()
        stack.callback(server.stop, None)
        with ThreadPoolExecutor(12) as callers:
            names = list(callers.map(lambda client: client.server_info().name, clients))
    assert names == ["triton"] * 12


def test_http_that_never_answers_is_a_timeout() -> None:
    with (
        listening(silence) as port,
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(TimedOut, match=r"within 0\.\d+ s"),
    ):
        ended(lambda: client.classify(b"image", timeout_s=0.5))


def test_the_deadline_also_bounds_an_answer_that_drips() -> None:
    def drip(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            connection.sendall(b"x")
            time.sleep(0.1)

    with listening(drip) as port, Client(f"http://127.0.0.1:{port}") as client, pytest.raises(TimedOut):
        ended(lambda: client.server_info(timeout_s=0.7))


def test_a_grpc_client_at_an_http_port_says_what_it_expected() -> None:
    with (
        listening(always(answer(400, b"what"))) as port,
        Client(f"127.0.0.1:{port}", retries=0) as client,
        pytest.raises(CannotConnect, match="speaks gRPC"),
    ):
        client.classify(b"image", timeout_s=10)


def test_an_http_client_at_another_port_says_what_it_expected() -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
        silence(connection)

    with (
        listening(greet) as port,
        Client(f"http://127.0.0.1:{port}", retries=0) as client,
        pytest.raises(CannotConnect, match="speaks HTTP"),
    ):
        client.classify(b"image", timeout_s=10)


@contextmanager
def speaking_http_2() -> Iterator[int]:
    """A port of a gRPC server."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(0).wait()


def test_an_http_client_recognizes_a_grpc_port() -> None:
    with (
        speaking_http_2() as port,
        Client(f"http://127.0.0.1:{port}", retries=0) as client,
        pytest.raises(CannotConnect) as refused,
    ):
        client.classify(b"image", timeout_s=10)
    assert f"127.0.0.1:{port}: it speaks HTTP/2, as a gRPC port does; " in str(refused.value)
    assert str(refused.value).isprintable()


def test_an_asynchronous_http_client_recognizes_a_grpc_port() -> None:
    async def classify(port: int) -> None:
        async with AsyncClient(f"http://127.0.0.1:{port}", retries=0) as client:
            await client.classify(b"image", timeout_s=10)

    with speaking_http_2() as port, pytest.raises(CannotConnect, match="it speaks HTTP/2, as a gRPC port does; "):
        asyncio.run(classify(port))


def test_an_idle_connection_that_the_server_closed_is_replaced_without_a_retry() -> None:
    connections = 0

    def one_answer_each(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        read_request(connection)
        connection.sendall(tensors())

    with (
        listening(one_answer_each) as port,
        Client(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=100) as client,
    ):
        for _ in range(3):
            assert client.classify(b"image").top.label == "label"
            time.sleep(0.1)
    assert connections == 3


def test_connections_are_used_again() -> None:
    connections = 0

    def count(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        always(tensors())(connection)

    with listening(count) as port, Client(f"http://127.0.0.1:{port}", max_body_bytes=100, retries=0) as client:
        for item in client.classify_many([b"image"] * 50, in_flight=3):
            item.unwrap()
    assert 1 <= connections <= 3


def test_closing_ends_calls_in_progress() -> None:
    with listening(silence) as port:
        client = Client(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=100)
        threading.Timer(0.3, client.close).start()
        with pytest.raises(ClientClosed):
            ended(lambda: client.classify(b"image", timeout_s=NEVER_S))


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (answer(400, b'{"error": "bad image (empty): 0 bytes"}'), BadImage),
        (answer(404, b'{"error": "Request for unknown model: \'x\' is not found"}'), ModelNotFound),
        (answer(429, b"slow down"), ServerOverloaded),
        (answer(502, b"<html>bad gateway"), ServerUnavailable),
        (answer(503, b'{"error": "Exceeds maximum queue size"}'), ServerOverloaded),
        (answer(504, b"<html>gateway timeout"), TimedOut),
        (answer(200, b"<html>hello"), UnexpectedResponse),
        (
            answer(200, b'{"outputs": [{"name": "scores", "datatype": "FP32", "shape": [1], "data": [1]}]}'),
            UnexpectedResponse,
        ),
        (answer(200, b"[]"), UnexpectedResponse),
        (tensors(datatype="BF16"), UnexpectedResponse),
        (tensors(shape=[1, 2]), UnexpectedResponse),
        (tensors(datatype="BYTES"), UnexpectedResponse),
        (tensors(parameters={"binary_data_size": 1000}), UnexpectedResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort", CannotConnect),
    ],
)
def test_answers_of_servers_and_proxies(response: bytes, kind: type[Exception]) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(response)

    with (
        listening(serve) as port,
        Client(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=100) as client,
        pytest.raises(kind) as caught,
    ):
        client.classify(b"image")
    assert type(caught.value) is kind


def test_a_proxy_that_refuses_a_large_body_before_it_has_read_it() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer(413, b"<html>too large", "Connection: close\r\n"))
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.5)

    with (
        listening(refuse) as port,
        Client(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=1 << 30) as client,
        pytest.raises(BadImage) as caught,
    ):
        client.classify(bytes(20_000_000))
    assert caught.value.code == "too_large"
