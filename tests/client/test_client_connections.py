"""Addresses where nobody answers, or somebody else does; and HTTP in detail."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import grpc
import pytest
import trustme
from both_clients import Connect
from http_scripts import Script, always, answer, listening, read_request, silence, tensors
from patience import NEVER_S, ended, in_a_loop
from tritonclient.grpc import service_pb2, service_pb2_grpc

from onestream.client import (
    AsyncClient,
    BadImage,
    CannotConnect,
    Client,
    ClientClosed,
    InvalidRequest,
    ModelNotFound,
    ServerOverloaded,
    ServerRefused,
    ServerUnavailable,
    TimedOut,
    UnexpectedResponse,
)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_refused_connection_is_not_a_timeout(scheme: str, free_port: int, connect: Connect) -> None:
    with connect(f"{scheme}://127.0.0.1:{free_port}") as client, pytest.raises(CannotConnect) as caught:
        ended(lambda: client.classify(b"image", timeout_s=NEVER_S))
    assert f"{scheme}://127.0.0.1:{free_port}" in str(caught.value)
    assert re.search("refused|connect call failed", str(caught.value), re.IGNORECASE)
    assert "expected a Triton server" in str(caught.value)


@pytest.fixture(scope="module")
def self_signed() -> Iterator[int]:
    """The port of a TLS server with a self-signed certificate that completes the handshake and nothing else."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    with authority.cert_pem.tempfile() as certificate, authority.private_key_pem.tempfile() as key:
        tls.load_cert_chain(certificate, key)
    with listening(lambda connection: tls.wrap_socket(connection, server_side=True).close()) as port:
        yield port


@pytest.mark.parametrize(("scheme", "variable"), [("grpcs", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"), ("https", "SSL_CERT")])
def test_a_self_signed_certificate_is_named(scheme: str, variable: str, self_signed: int, connect: Connect) -> None:
    said = rf"its certificate is not trusted \(self.signed certificate\); one of your own is trusted where {variable}"
    with connect(f"{scheme}://127.0.0.1:{self_signed}") as client, pytest.raises(CannotConnect, match=said):
        ended(lambda: client.classify(b"image", timeout_s=NEVER_S))


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_unknown_host_cannot_be_connected(scheme: str, connect: Connect) -> None:
    with connect(f"{scheme}://no-such-host.invalid") as client, pytest.raises(CannotConnect, match=r"no-such-host"):
        client.classify(b"image", timeout_s=5)


def test_grpc_gives_up_connecting_after_the_connect_timeout(connect: Connect) -> None:
    with (
        listening(silence) as port,
        connect(f"127.0.0.1:{port}", connect_timeout_s=0.5, retries=0) as client,
        pytest.raises(CannotConnect),
    ):
        ended(lambda: client.classify(b"image", timeout_s=NEVER_S))


def test_a_grpc_server_that_comes_back_is_reached_by_the_next_call(free_port: int, connect: Connect) -> None:
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
        clients = [stack.enter_context(connect(f"127.0.0.1:{free_port}")) for _ in range(12)]
        assert all(threads.map(fails, clients, [0.2 * index for index in range(12)]))
        server = grpc.server(threads)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(answering, server)
        server.add_insecure_port(f"127.0.0.1:{free_port}")
        server.start()
        stack.callback(server.stop, None)
        with ThreadPoolExecutor(12) as callers:
            names = list(callers.map(lambda client: client.server_info().name, clients))
    assert names == ["triton"] * 12


def test_http_that_never_answers_is_a_timeout(connect: Connect) -> None:
    with (
        listening(silence) as port,
        connect(f"http://127.0.0.1:{port}") as client,
        pytest.raises(TimedOut, match=r"within 0\.\d+ s"),
    ):
        ended(lambda: client.classify(b"image", timeout_s=0.5))


def test_the_deadline_also_bounds_an_answer_that_drips(connect: Connect) -> None:
    def drip(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            connection.sendall(b"x")
            time.sleep(0.1)

    with listening(drip) as port, connect(f"http://127.0.0.1:{port}") as client, pytest.raises(TimedOut):
        ended(lambda: client.server_info(timeout_s=0.7))


def greet(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
    silence(connection)


@pytest.mark.parametrize(
    ("scheme", "other", "words"),
    [("grpc", always(answer(400, b"what")), "speaks gRPC"), ("http", greet, "speaks HTTP")],
)
def test_a_client_at_another_s_port_says_what_it_expected(
    scheme: str, other: Script, words: str, connect: Connect
) -> None:
    with (
        listening(other) as port,
        connect(f"{scheme}://127.0.0.1:{port}", retries=0) as client,
        pytest.raises(CannotConnect, match=words),
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


def test_an_http_client_recognizes_a_grpc_port(connect: Connect) -> None:
    with (
        speaking_http_2() as port,
        connect(f"http://127.0.0.1:{port}", retries=0) as client,
        pytest.raises(CannotConnect) as refused,
    ):
        client.classify(b"image", timeout_s=10)
    assert f"127.0.0.1:{port}: it speaks HTTP/2, as a gRPC port does; " in str(refused.value)
    assert str(refused.value).isprintable()


def test_an_idle_connection_that_the_server_closed_is_replaced_without_a_retry(connect: Connect) -> None:
    connections = 0

    def one_answer_each(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        read_request(connection)
        connection.sendall(tensors())

    with (
        listening(one_answer_each) as port,
        connect(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=100) as client,
    ):
        for _ in range(3):
            assert client.classify(b"image").top.label == "label"
            time.sleep(0.1)
    assert connections == 3


def test_connections_are_used_again(connect: Connect) -> None:
    connections = 0

    def count(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        always(tensors())(connection)

    with listening(count) as port, connect(f"http://127.0.0.1:{port}", max_body_bytes=100, retries=0) as client:
        for item in client.classify_many([b"image"] * 50, in_flight=3):
            item.unwrap()
    assert 1 <= connections <= 3


def test_closing_ends_calls_in_progress(connect: Connect) -> None:
    with listening(silence) as port:
        client = connect(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=100)
        threading.Timer(0.3, client.close).start()
        with pytest.raises(ClientClosed):
            ended(lambda: client.classify(b"image", timeout_s=NEVER_S))


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (answer(400, b'{"error": "bad image (empty): 0 bytes"}'), BadImage),
        (answer(401, b'{"error": "because"}'), ServerRefused),
        (answer(404, b'{"error": "Request for unknown model: \'x\' is not found"}'), ModelNotFound),
        (answer(422, b'{"error": "because"}'), InvalidRequest),
        (answer(429, b"slow down"), ServerOverloaded),
        (answer(302, b"", "Location: http://127.0.0.1:1/\r\n"), ServerRefused),
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
def test_answers_of_servers_and_proxies(response: bytes, kind: type[Exception], connect: Connect) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(response)

    with (
        listening(serve) as port,
        connect(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=100) as client,
        pytest.raises(kind) as caught,
    ):
        client.classify(b"image")
    assert type(caught.value) is kind
    assert b"because" not in response or "because" in str(caught.value)


def test_a_proxy_that_refuses_a_large_body_before_it_has_read_it(connect: Connect) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer(413, b"<html>too large", "Connection: close\r\n"))
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.5)

    with (
        listening(refuse) as port,
        connect(f"http://127.0.0.1:{port}", retries=0, max_body_bytes=1 << 30) as client,
        pytest.raises(BadImage) as caught,
    ):
        client.classify(bytes(20_000_000))
    assert caught.value.code == "too_large"


def test_http_connects_within_the_connect_timeout(connect: Connect) -> None:
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
            # What is named is what was left of the 0.3 s when connecting began.
            with (
                connect(f"http://127.0.0.1:{port}", **{short: 0.3, long: NEVER_S}, retries=0) as client,
                pytest.raises(CannotConnect, match=r"no connection within 0\.\d+ s"),
            ):
                ended(partial(client.classify, b"image"))
        for one in crowd:
            one.close()


@in_a_loop
async def test_cancelling_closes_the_http_connection() -> None:
    begun, ended = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        begun.set()
        # Returns when the other side has closed.
        silence(connection)
        ended.set()

    with listening(serve) as port:
        async with AsyncClient(f"http://127.0.0.1:{port}", max_body_bytes=100) as client:
            task = asyncio.ensure_future(client.classify(b"image", timeout_s=60))
            assert await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(ended.wait, 10)
