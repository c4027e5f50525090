"""Servers at a port of this machine that say over HTTP, or any protocol, what a test wants said."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Script = Callable[[socket.socket], None]


@contextmanager
def listening(serve: Script) -> Iterator[str]:
    """An address where every connection is handed to ``serve`` in a thread of its own."""
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
        yield f"127.0.0.1:{listener.getsockname()[1]}"
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


def once(response: bytes) -> Script:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(response)

    return serve


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


def silence(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass
