"""Addresses where nobody answers, or somebody else does; and HTTP in detail."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
import trustme
from both_clients import Connect
from http_scripts import Script, always, answer, listening, once, read_request, silence, tensors
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
    OnestreamError,
    ServerOverloaded,
    ServerRefused,
    ServerUnavailable,
    TimedOut,
    UnexpectedResponse,
)


def failure(connect: Connect, url: str, image: bytes = b"image", **options: Any) -> OnestreamError:
    """What the first attempt of a call fails with there."""
    options = {"timeout_s": NEVER_S, "max_body_bytes": 1 << 30, **options}
    with connect(url, retries=0, **options) as client, pytest.raises(OnestreamError) as caught:
        ended(lambda: client.classify(image))
    return caught.value


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_where_nobody_is_it_cannot_connect(scheme: str, free_port: int, connect: Connect) -> None:
    refused = failure(connect, f"{scheme}://127.0.0.1:{free_port}")
    assert type(refused) is CannotConnect
    assert f"{scheme}://127.0.0.1:{free_port}" in str(refused)
    assert re.search("refused|connect call failed", str(refused), re.IGNORECASE)
    assert "expected a Triton server" in str(refused)
    unknown = failure(connect, f"{scheme}://no-such-host.invalid")
    assert type(unknown) is CannotConnect
    assert "no-such-host" in str(unknown)


def test_a_self_signed_certificate_is_named(connect: Connect) -> None:
    """Of a TLS server that completes the handshake and nothing else."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    with authority.cert_pem.tempfile() as certificate, authority.private_key_pem.tempfile() as key:
        tls.load_cert_chain(certificate, key)
    said = r"its certificate is not trusted \(self.signed certificate\); one of your own is trusted where "
    with listening(lambda connection: tls.wrap_socket(connection, server_side=True).close()) as address:
        for scheme, variable in (("grpcs", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"), ("https", "SSL_CERT")):
            error = failure(connect, f"{scheme}://{address}")
            assert type(error) is CannotConnect
            assert re.search(said + variable, str(error))


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


def drip(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        connection.sendall(b"x")
        time.sleep(0.1)


def greet(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
    silence(connection)


def refuse_before_reading(connection: socket.socket) -> None:
    """As a proxy does a large body."""
    connection.recv(1000)
    connection.sendall(answer(413, b"<html>too large", "Connection: close\r\n"))
    connection.shutdown(socket.SHUT_WR)
    time.sleep(0.5)


@pytest.mark.parametrize(
    ("scheme", "serve", "options", "kind", "words"),
    [
        ("grpc", silence, {"connect_timeout_s": 0.5}, CannotConnect, ""),
        ("grpc", always(answer(400, b"what")), {}, CannotConnect, "speaks gRPC"),
        ("http", greet, {}, CannotConnect, "speaks HTTP"),
        ("http", silence, {"timeout_s": 0.5}, TimedOut, r"within 0\.\d+ s"),
        ("http", drip, {"timeout_s": 0.7}, TimedOut, ""),
        ("http", refuse_before_reading, {"image": bytes(20_000_000)}, BadImage, r"\(too_large\)"),
    ],
)
def test_who_does_not_answer_as_triton(
    scheme: str, serve: Script, options: dict[str, Any], kind: type[OnestreamError], words: str, connect: Connect
) -> None:
    with listening(serve) as address:
        error = failure(connect, f"{scheme}://{address}", **options)
    assert type(error) is kind
    assert re.search(words, str(error))


def test_an_http_client_recognizes_a_grpc_port(connect: Connect) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    error = failure(connect, f"http://127.0.0.1:{port}")
    server.stop(0).wait()
    assert type(error) is CannotConnect
    assert f"127.0.0.1:{port}: it speaks HTTP/2, as a gRPC port does; " in str(error)
    assert str(error).isprintable()


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
        (answer(200, b'{"id": "because of another", "outputs": []}'), UnexpectedResponse),
        (tensors(datatype="BF16"), UnexpectedResponse),
        (tensors(shape=[1, 2]), UnexpectedResponse),
        (tensors(datatype="BYTES"), UnexpectedResponse),
        (tensors(parameters={"binary_data_size": 1000}), UnexpectedResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort", CannotConnect),
    ],
)
def test_answers_of_servers_and_proxies(response: bytes, kind: type[Exception], connect: Connect) -> None:
    with listening(once(response)) as address:
        error = failure(connect, f"http://{address}")
    assert type(error) is kind
    assert b"because" not in response or "because" in str(error)


NOBODY = answer(200, b'{"name": "of nobody"}')


def test_connections_are_used_again(connect: Connect) -> None:
    connections = []

    def serve(connection: socket.socket) -> None:
        connections.append(connection)
        always(tensors())(connection)

    with listening(serve) as address, connect(f"http://{address}", max_body_bytes=100, retries=0) as client:
        for item in client.classify_many([b"image"] * 50, in_flight=3):
            item.unwrap()
    assert 1 <= len(connections) <= 3


@pytest.mark.parametrize(("more_at_once", "more_later"), [(b"", b""), (NOBODY, b""), (b"", NOBODY)])
def test_a_connection_that_the_server_closed_or_says_more_on_is_replaced_without_a_retry(
    more_at_once: bytes, more_later: bytes, connect: Connect
) -> None:
    """Unrequested bytes are not read as the next response."""
    connections, received, ready = [], threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        connections.append(connection)
        once(tensors() + more_at_once)(connection)
        received.wait(10)
        connection.sendall(more_later)
        if not more_at_once + more_later:
            connection.shutdown(socket.SHUT_RDWR)
        ready.set()
        read_request(connection)

    with listening(serve) as address, connect(f"http://{address}", retries=0, max_body_bytes=100) as client:
        for _ in range(3):
            assert client.classify(b"image").top.label == "label"
            received.set()
            assert ready.wait(10)
            received.clear()
            ready.clear()
    assert len(connections) == 3


def test_closing_ends_calls_in_progress(connect: Connect) -> None:
    with listening(silence) as address:
        client = connect(f"http://{address}", retries=0, max_body_bytes=100)
        threading.Timer(0.3, client.close).start()
        with pytest.raises(ClientClosed):
            ended(lambda: client.classify(b"image", timeout_s=NEVER_S))


def test_http_connects_within_the_connect_timeout(connect: Connect) -> None:
    """A listener whose queue is full lets nobody in."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        host, port = full.getsockname()
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((host, port))
        for short, long in (("connect_timeout_s", "timeout_s"), ("timeout_s", "connect_timeout_s")):
            error = failure(connect, f"http://{host}:{port}", **{short: 0.3, long: NEVER_S})
            assert type(error) is CannotConnect
            # What is named is what was left of the 0.3 s when connecting began.
            assert re.search(r"no connection within 0\.\d+ s", str(error))


@in_a_loop
async def test_cancelling_closes_the_http_connection() -> None:
    begun, hung_up = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        begun.set()
        # Returns when the other side has closed.
        silence(connection)
        hung_up.set()

    with listening(serve) as address:
        async with AsyncClient(f"http://{address}", max_body_bytes=100) as client:
            task = asyncio.ensure_future(client.classify(b"image", timeout_s=60))
            assert await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(hung_up.wait, 10)
