"""gRPC servers that answer in ways in which no server should: in HTTP/2, in Protocol Buffers, in tensors."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as messages

from benchmarks.hostile.broken_http import DRIP_PAUSE_S, HttpCase, Serve, repeat, results

Answer = Callable[[str, Any], bytes]
"""From the name of the method and gRPC's context to the bytes of the answer; it may abort the call."""

_CLIENT_PREFACE_BYTES = 24
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS = 1, 4


@dataclass(frozen=True)
class GrpcCase:
    """A server that speaks gRPC, and whose answers are bytes of any kind."""

    name: str
    call: str
    answer: Answer
    waits: bool = False

    @contextmanager
    def running(self) -> Iterator[tuple[str, threading.Event]]:
        """A server of this case: its address, and an event that is set when a call has ended."""
        ended = threading.Event()
        server = grpc.server(
            ThreadPoolExecutor(4),
            handlers=[_Handler(self.answer, ended)],
            options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"grpc://127.0.0.1:{port}", ended
        finally:
            server.stop(0)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, answer: Answer, ended: threading.Event) -> None:
        self._answer, self._ended = answer, ended

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]

        def handle(_request: bytes, context: Any) -> bytes:
            context.add_callback(self._ended.set)
            return self._answer(method, context)

        return grpc.unary_unary_rpc_method_handler(handle)


def cases() -> list[GrpcCase | HttpCase]:
    """All of them; names are unique."""
    return [*_waiting(), *_large(), *_statuses(), *_broken_messages(), *_broken_tensors(), *_broken_frames()]


def _waiting() -> Iterator[GrpcCase]:
    def hold(_method: str, context: Any) -> bytes:
        while context.is_active():
            time.sleep(0.02)
        return b""

    def hold_after_metadata(method: str, context: Any) -> bytes:
        context.send_initial_metadata((("x", "y"),))
        return hold(method, context)

    for call in ("infer", "config", "statistics", "server_info"):
        yield GrpcCase("silence", call, hold, waits=True)
        yield GrpcCase("silence after metadata", call, hold_after_metadata, waits=True)


def _field(number: int, data: bytes) -> bytes:
    """A field of Protocol Buffers with a length."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    head = b""
    while number > 127:
        head, number = head + bytes([number & 127 | 128]), number >> 7
    return head + bytes([number])


def _always(data: bytes) -> Answer:
    return lambda _method, _context: data


def _packed_by_gzip(_method: str, context: Any) -> bytes:
    context.set_compression(grpc.Compression.Gzip)
    return bytes(300 << 20)


def _large() -> Iterator[GrpcCase]:
    answers = {
        "300 MiB": lambda _method, _context: bytes(300 << 20),
        "100 MiB of empty outputs": lambda _method, _context: b"\x2a\x00" * (50 << 20),
        "100 MiB of empty contents": lambda _method, _context: b"\x32\x00" * (50 << 20),
        "300 MiB in gzip": _packed_by_gzip,
        "10 MiB of a name": lambda _method, _context: _field(1, bytes(10 << 20)),
    }
    for call in ("infer", "config", "statistics", "server_info"):
        for name, answer in answers.items():
            yield GrpcCase(f"flood: {name}", call, answer)


def _statuses() -> Iterator[GrpcCase]:
    def trailing(_method: str, context: Any) -> bytes:
        context.set_trailing_metadata((("x", "y" * 100_000),))
        return b""

    def initial(_method: str, context: Any) -> bytes:
        context.send_initial_metadata((("x", "y" * 100_000),))
        return b""

    def many(_method: str, context: Any) -> bytes:
        context.set_trailing_metadata(tuple((f"x{index}", "y" * 10) for index in range(10_000)))
        return b""

    def aborting(code: grpc.StatusCode, details: str) -> Answer:
        return lambda _method, context: context.abort(code, details)

    yield GrpcCase("trailing metadata of 100 KB", "infer", trailing)
    yield GrpcCase("initial metadata of 100 KB", "infer", initial)
    yield GrpcCase("10,000 trailing headers", "infer", many)
    yield GrpcCase("details of 400 KB", "infer", aborting(grpc.StatusCode.INTERNAL, "y" * 400_000))
    yield GrpcCase("details of spaces", "infer", aborting(grpc.StatusCode.INTERNAL, " " * 5000))
    yield GrpcCase("details for terminals", "infer", aborting(grpc.StatusCode.INTERNAL, "\x1b[2J\x1b]0;title\x07"))
    for code in grpc.StatusCode:
        if code is not grpc.StatusCode.OK:
            yield GrpcCase(f"status {code.name}", "infer", aborting(code, "as ordered"))


def _broken_messages() -> Iterator[GrpcCase]:
    datas = {
        "no message": b"\xff\xff\xff",
        "text": b"hello, this is no message",
        "cut": _field(1, b"x" * 100)[:-5],
        "a length of 2**63": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        "a number without an end": b"\x0a" + b"\xff" * 20,
        "no UTF-8": _field(1, b"\xff\xfe"),
        "groups": b"\x0b" * 100_000,
        "type 7": b"\x0f\x00",
        "zeros": bytes(1000),
    }
    for call in ("infer", "config", "statistics", "server_info"):
        for name, data in datas.items():
            yield GrpcCase(f"message: {name}", call, _always(data))
    config = messages.ModelConfigResponse()
    config.config.output.add(name="x", data_type="TYPE_FP32", dims=[-5])
    yield GrpcCase("a configuration with dims of -5", "config", _always(config.SerializeToString()))
    text = messages.ModelConfigResponse()
    text.config.parameters["max_body_bytes"].string_value = "9" * 5000
    yield GrpcCase("a configuration with a limit of 5,000 digits", "config", _always(text.SerializeToString()))
    yield GrpcCase("100,000 versions", "statistics", _after_config(b"\x0a\x00" * 100_000))
    yield GrpcCase("100,000 extensions", "server_info", _always(b"\x1a\x00" * 100_000))


def _after_config(data: bytes) -> Answer:
    return lambda method, _context: b"" if method == "ModelConfig" else data


def _broken_tensors() -> Iterator[GrpcCase]:
    one = bytes(4)
    triples: list[tuple[list[tuple[str, str, list[int]]], list[bytes]]] = [
        ([("scores", "FP32", [1, 1])], []),
        ([], [one]),
        ([("scores", "FP32", [1, 1])], [one, one]),
        ([("scores", "FP32", [1, 1])] * 2, [one, one]),
        ([("scores", "FP32", [2])], [one]),
        ([("scores", "FP32", [-1])], [one]),
        ([("scores", "FP32", [-1, -1])], [one]),
        ([("scores", "FP32", [2**62, 4])], [one]),
        ([("scores", "FP32", [0, 2**62])], [b""]),
        ([("scores", "FP32", [1] * 50)], [one]),
        ([("scores", "FP32", [2**40] * 50_000)], [one]),
        ([("scores", "", [1])], [one]),
        ([("scores", "BF16", [2])], [one]),
        ([("scores", "x" * 100_000, [2])], [one]),
        ([("scores", "BOOL", [4])], [b"\7\7\7\7"]),
        ([("scores", "BYTES", [1])], [b"\xff\xff\xff\xff"]),
        ([("scores", "BYTES", [1])], [b"\5\0"]),
        ([("scores", "BYTES", [2])], [b"\1\0\0\0a"]),
        ([("scores", "BYTES", [0])], [b"\0\0\0\0"]),
        ([("scores", "BYTES", [1_000_000])], [bytes(4_000_000)]),
        ([("scores", "BYTES", [2**62])], [b"\0\0\0\0"]),
    ]
    for index, (outputs, contents) in enumerate(triples):
        yield GrpcCase(f"tensors {index}: {outputs!s:.70}", "infer", _always(_response(outputs, contents)))
    typed = messages.ModelInferResponse()
    typed.outputs.add(name="scores", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1.0)
    yield GrpcCase("tensors: typed contents", "infer", _always(typed.SerializeToString()))
    other = _response([("scores", "FP32", [1, 1])], [one], id="other")
    yield GrpcCase("tensors: the id of another request", "infer", _always(other))
    for name, rows in results().items():
        data = _response([row[:3] for row in rows], [row[3] for row in rows])
        yield GrpcCase(f"results: {name}", "classify", _always(data))


def _response(outputs: list[tuple[str, str, list[int]]], contents: list[bytes], **fields: str) -> bytes:
    message = messages.ModelInferResponse(raw_output_contents=contents, **fields)
    for name, datatype, shape in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
    data: bytes = message.SerializeToString()
    return data


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def _header(name: bytes, value: bytes) -> bytes:
    """A header of HPACK, written in full."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


_SETTINGS_FRAMES = _frame(_SETTINGS, 0, 0, b"") + _frame(_SETTINGS, 1, 0, b"")
_STATUS_200 = b"\x88"
_GRPC = _STATUS_200 + _header(b"content-type", b"application/grpc")


def _broken_frames() -> Iterator[HttpCase]:
    """Raw HTTP/2; the first call of a client is stream 1."""
    begun = _frame(_HEADERS, _END_HEADERS, 1, _GRPC)
    length_of_4_gb = b"\0" + b"\xff" * 4
    waiting = {
        "silence": (b"", b"", False),
        "settings and silence": (_SETTINGS_FRAMES, b"", True),
        "headers and silence": (_SETTINGS_FRAMES + begun, b"", True),
        "drip: settings": (b"\0\0\0\4", b"\0", False),
        "drip: a frame": (_SETTINGS_FRAMES + begun + _frame(_DATA, 0, 1, bytes(16_000))[:20], b"\0", True),
        "drip: a message": (_SETTINGS_FRAMES + begun, _frame(_DATA, 0, 1, b"\0\0\0\xff\xff"), True),
        "drip: empty frames": (_SETTINGS_FRAMES + begun, _frame(_DATA, 0, 1, b""), True),
        "drip: pings": (_SETTINGS_FRAMES, _frame(_PING, 0, 0, bytes(8)), True),
        "drip: window updates": (_SETTINGS_FRAMES, _frame(_WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)), True),
    }
    for call in ("infer", "config"):
        for name, (before, piece, asks) in waiting.items():
            serve = _http2(before, piece, pause_s=DRIP_PAUSE_S, asks=asks)
            yield HttpCase(f"HTTP/2: {name}", call, serve, waits=True, reads=False, scheme="grpc")
    done = _END_STREAM | _END_HEADERS
    broken = {
        "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "SSH": b"SSH-2.0-OpenSSH_9.9\r\n",
        "zeros": bytes(1000),
        "the end after settings": _SETTINGS_FRAMES,
        "no status of gRPC": _SETTINGS_FRAMES + _frame(_HEADERS, done, 1, _GRPC),
        "no headers": _SETTINGS_FRAMES + _frame(_HEADERS, done, 1, b""),
        "HTTP status 500": _SETTINGS_FRAMES + _frame(_HEADERS, done, 1, b"\x8e"),
        "HTTP status 404": _SETTINGS_FRAMES + _frame(_HEADERS, done, 1, b"\x8d"),
        "a page of HTML": _SETTINGS_FRAMES
        + _frame(_HEADERS, _END_HEADERS, 1, _STATUS_200 + _header(b"content-type", b"text/html"))
        + _frame(_DATA, _END_STREAM, 1, b"<html>hello"),
        "a status that is no number": _SETTINGS_FRAMES
        + _frame(_HEADERS, done, 1, _GRPC + _header(b"grpc-status", b"abc")),
        "status 99": _SETTINGS_FRAMES + _frame(_HEADERS, done, 1, _GRPC + _header(b"grpc-status", b"99")),
        "status 0 without a message": _SETTINGS_FRAMES
        + _frame(_HEADERS, done, 1, _GRPC + _header(b"grpc-status", b"0")),
        "a reason that is no UTF-8": _SETTINGS_FRAMES
        + _frame(_HEADERS, done, 1, _GRPC + _header(b"grpc-status", b"13") + _header(b"grpc-message", b"%ff%fe")),
        "a message of 4 GB": _SETTINGS_FRAMES + begun + _frame(_DATA, 0, 1, length_of_4_gb),
        "a message that ends early": _SETTINGS_FRAMES + begun + _frame(_DATA, _END_STREAM, 1, b"\0\0\0\0\xffx"),
        "a message of an unknown kind": _SETTINGS_FRAMES + begun + _frame(_DATA, 0, 1, b"\x77\0\0\0\1x"),
        "data before headers": _SETTINGS_FRAMES + _frame(_DATA, 0, 1, b"\0\0\0\0\0"),
        "a frame of 16 MB": _SETTINGS_FRAMES + begun + b"\xff\xff\xff\0\0\0\0\0\1",
        "headers that are none": _SETTINGS_FRAMES + _frame(_HEADERS, done, 1, b"\xff" * 50),
        "a reset": _SETTINGS_FRAMES + _frame(_RST_STREAM, 0, 1, struct.pack(">I", 2)),
        "a refusal of the stream": _SETTINGS_FRAMES + _frame(_RST_STREAM, 0, 1, struct.pack(">I", 7)),
        "an end of the connection": _SETTINGS_FRAMES + _frame(_GOAWAY, 0, 0, struct.pack(">II", 0, 11)),
    }
    for call in ("infer", "config"):
        for name, data in broken.items():
            yield HttpCase(f"HTTP/2: {name}", call, _http2(data, b"", asks=True, ends=True), reads=False, scheme="grpc")


def _http2(before: bytes, piece: bytes, *, asks: bool, pause_s: float = 0.0, ends: bool = False) -> Serve:
    """Send ``before``, after the client's request where it ``asks``, then ``piece`` until the client hangs up."""

    def serve(connection: socket.socket, _path: str) -> None:
        if asks and before.startswith(_SETTINGS_FRAMES):
            connection.sendall(_SETTINGS_FRAMES)
            _read_until_headers(connection)
            connection.sendall(before[len(_SETTINGS_FRAMES) :])
        else:
            connection.sendall(before)
        if ends:
            # What a reset would throw away shall be read first.
            select.select([connection], [], [], 0.2)
            raise OSError
        repeat(connection, piece, pause_s=pause_s)

    return serve


def _read_until_headers(connection: socket.socket) -> None:
    data = b""
    at = _CLIENT_PREFACE_BYTES
    while True:
        while len(data) < at + 9:
            part = connection.recv(1 << 16)
            if not part:
                raise OSError
            data += part
        if data[at + 3] == _HEADERS:
            return
        at += 9 + int.from_bytes(data[at : at + 3], "big")
