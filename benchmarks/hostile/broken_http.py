"""HTTP servers that answer in ways in which no server should: dripping, flooding, and malformed at every level."""

from __future__ import annotations

import gzip
import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

Serve = Callable[[socket.socket, str], None]
"""What is done with one connection after a request with this path was read."""

DRIP_PAUSE_S = 0.2
_LONGEST_S = 60.0
_HEAD_LENGTH = "Inference-Header-Content-Length"
_BLOCK = b"x" * (1 << 16)


class _GaveUp(Exception):
    """The client did not end the connection."""


@dataclass(frozen=True)
class HttpCase:
    """``call`` names what the client does; a case that ``waits`` is ended by the client's deadline or never."""

    name: str
    call: str
    serve: Serve
    waits: bool = False
    reads: bool = True
    scheme: str = "http"

    @contextmanager
    def running(self) -> Iterator[tuple[str, threading.Event]]:
        """A server of this case: its address, and an event that is set when a client has ended a connection."""
        ended = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        connections: list[socket.socket] = []

        def run(connection: socket.socket) -> None:
            try:
                with connection:
                    while not self.reads or (path := _read_request(connection)):
                        self.serve(connection, path if self.reads else "")
            except _GaveUp:
                return
            except (OSError, ValueError):
                # The client, or the end of the case, closed the connection.
                pass
            ended.set()

        def accept() -> None:
            while True:
                try:
                    connections.append(listener.accept()[0])
                except OSError:
                    return
                threading.Thread(target=run, args=[connections[-1]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"{self.scheme}://127.0.0.1:{listener.getsockname()[1]}", ended
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            for connection in connections:
                connection.close()


def cases() -> list[HttpCase]:
    """All of them; names are unique."""
    return [*_drips(), *_floods(), *_broken_framing(), *_broken_documents(), *_broken_tensors(), *_broken_results()]


def _read_request(connection: socket.socket) -> str:
    """The path of one request, whose body is read; empty when the other side hung up."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            return ""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    missing = length - len(body)
    while missing > 0 and (part := connection.recv(1 << 16)):
        missing -= len(part)
    return head.split(b" ")[1].decode()


def _drip(before: bytes, piece: bytes, *, pause_s: float = DRIP_PAUSE_S) -> Serve:
    """``before`` at once, then ``piece`` again and again until the client hangs up."""

    def serve(connection: socket.socket, _path: str) -> None:
        connection.sendall(before)
        repeat(connection, piece, pause_s=pause_s)

    return serve


def repeat(connection: socket.socket, piece: bytes, *, pause_s: float) -> None:
    """Send ``piece`` until the client hangs up, but not for ever, as tests have to end."""
    end = monotonic() + _LONGEST_S
    while monotonic() < end:
        readable, _, _ = select.select([connection], [], [], pause_s)
        if readable and not connection.recv(1 << 16):
            raise OSError
        connection.sendall(piece)
    raise _GaveUp


def _drips() -> Iterator[HttpCase]:
    ok, chunked = "HTTP/1.1 200 OK\r\n", "Transfer-Encoding: chunked\r\n\r\n"
    points = {
        "silence": ("", ""),
        "status line": ("HTTP/1.1 200 O", "O"),
        "status code": ("HTTP/1.1 2", ""),
        "version": ("HTTP/1.", ""),
        "header name": (f"{ok}X", "x"),
        "header value": (f"{ok}X: ", "x"),
        "many headers": (ok, "X: y\r\n"),
        "folded header": (f"{ok}X: y\r\n", " z\r\n"),
        "100 Continue": ("", "HTTP/1.1 100 Continue\r\n\r\n"),
        "100 Continue with headers": ("", "HTTP/1.1 100 Continue\r\nX: y\r\n\r\n"),
        "size of a chunk": (f"{ok}{chunked}", "0"),
        "extension of a chunk": (f"{ok}{chunked}5;", "x"),
        "chunks of a byte": (f"{ok}{chunked}", "1\r\nx\r\n"),
        "inside a chunk": (f"{ok}{chunked}fff\r\n", "x"),
        "end of a chunk": (f"{ok}{chunked}1\r\nx", ""),
        "trailers": (f"{ok}{chunked}1\r\nx\r\n0\r\n", "X: y\r\n"),
        "a trailer": (f"{ok}{chunked}1\r\nx\r\n0\r\nX: ", "y"),
        "body": (f"{ok}Content-Length: 1000\r\n\r\n", "x"),
        "body without its last byte": (f"{ok}Content-Length: 3\r\n\r\n{{}}", ""),
        "body until the end": (f"{ok}Connection: close\r\n\r\n", " "),
        "body of an error": ("HTTP/1.1 500 X\r\nContent-Length: 1000\r\n\r\n", "x"),
        "body of a refusal": ("HTTP/1.1 503 X\r\nContent-Length: 1000\r\n\r\n", "x"),
    }
    for call in ("infer", "config", "server_info"):
        for name, (before, piece) in points.items():
            yield HttpCase(f"drip: {name}", call, _drip(before.encode(), piece.encode()), waits=True)
    yield HttpCase("upload that nobody reads", "upload", lambda connection, _: _wait(connection), True, reads=False)
    yield HttpCase("TLS handshake: silence", "infer", _drip(b"", b""), True, reads=False, scheme="https")
    record = b"\x16\x03\x03\x40\x00"
    yield HttpCase("drip: TLS handshake", "infer", _drip(record, b"\x02"), True, reads=False, scheme="https")
    second = _drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x")
    yield HttpCase("drip: body of the second answer", "after_config", _config_then(second), waits=True)
    yield HttpCase("drip: statistics after a configuration", "statistics", _config_then(second), waits=True)


def _wait(connection: socket.socket) -> None:
    """Until the client ends the connection, which shows in an error as what it sent is not read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    if not poll.poll(_LONGEST_S * 1000):
        raise _GaveUp
    raise OSError


def _config_then(serve: Serve) -> Serve:
    def answer(connection: socket.socket, path: str) -> None:
        if path.endswith("/config"):
            connection.sendall(response(b"{}"))
        else:
            serve(connection, path)

    return answer


def _floods() -> Iterator[HttpCase]:
    ok, chunked = b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
    endless = {
        "4 GB declared": (ok + b"Content-Length: 4000000000\r\n\r\n", _BLOCK),
        "body until the end": (ok + b"Connection: close\r\n\r\n", _BLOCK),
        "chunks": (ok + chunked, b"10000\r\n" + _BLOCK + b"\r\n"),
        "chunks of a byte": (ok + chunked, b"1\r\nx\r\n" * 10_000),
        "one chunk": (ok + chunked + b"fffffffffff\r\n", _BLOCK),
        "digits of a chunk's size": (ok + chunked, b"0" * 65_536),
        "extension of a chunk": (ok + chunked + b"5;", _BLOCK),
        "trailers": (ok + chunked + b"0\r\n", b"X: y\r\n" * 10_000),
        "a trailer": (ok + chunked + b"0\r\nX: ", _BLOCK),
        "status line": (b"HTTP/1.1 200 ", _BLOCK),
        "headers": (ok, b"X: y\r\n" * 10_000),
        "a header": (ok + b"X: ", _BLOCK),
        "error of 4 GB": (b"HTTP/1.1 500 X\r\nContent-Length: 4000000000\r\n\r\n", _BLOCK),
        "error until the end": (b"HTTP/1.1 400 X\r\n\r\n", _BLOCK),
        "head of JSON": (ok + _HEAD_LENGTH.encode() + b": 900000000\r\n\r\n", b"[" * 65_536),
        "no HTTP": (b"", b"\0" * 65_536),
    }
    for call in ("infer", "config", "statistics", "server_info"):
        for name, (before, block) in endless.items():
            yield HttpCase(f"flood: {name}", call, _drip(before, block, pause_s=0))
    unasked = b"HTTP/1.1 100 Continue\r\n\r\n" * 1000
    yield HttpCase("flood: 100 Continue", "infer", _drip(b"", unasked, pause_s=0))


def response(body: bytes, headers: str = "", *, status: int = 200) -> bytes:
    """A well-formed answer with this body."""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def _once(answer: bytes) -> Serve:
    """The answer, and the end of the connection."""

    def serve(connection: socket.socket, _path: str) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        _wait_for_end(connection)

    return serve


def _wait_for_end(connection: socket.socket) -> None:
    end = monotonic() + 10
    connection.settimeout(10)
    while monotonic() < end and connection.recv(1 << 16):
        pass
    raise OSError


def _broken_framing() -> Iterator[HttpCase]:
    ok = b"HTTP/1.1 200 OK\r\n"
    chunked = ok + b"Transfer-Encoding: chunked\r\n\r\n"
    answers = {
        "end without an answer": b"",
        "status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
        "status 99": b"HTTP/1.1 99 OK\r\n\r\n",
        "status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
        "negative status": b"HTTP/1.1 -200 OK\r\n\r\n",
        "version 9.9": b"HTTP/9.9 200 OK\r\n\r\n",
        "SSH": b"SSH-2.0-OpenSSH_9.9\r\n",
        "zeros": bytes(100),
        "TLS alert": b"\x15\x03\x01\x00\x02\x02\x16",
        "only a status line": b"HTTP/1.1 200 OK\r\n",
        "header without a colon": ok + b"nothing\r\nContent-Length: 2\r\n\r\nxx",
        "200 headers": ok + b"X: y\r\n" * 200 + b"\r\n",
        "header of 70,000 bytes": ok + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        "switch of protocols": b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "early hints and the end": b"HTTP/1.1 103 X\r\n\r\n",
        "no content": b"HTTP/1.1 204 X\r\n\r\n",
        "redirection": response(b"", "Location: /v2\r\n", status=302),
        "length that is no number": ok + b"Content-Length: abc\r\n\r\nxx",
        "negative length": ok + b"Content-Length: -2\r\n\r\nxx",
        "length with a sign": ok + b"Content-Length: +2\r\n\r\nxx",
        "length with a line": ok + b"Content-Length: 1_0\r\n\r\n" + bytes(10),
        "length of 30 digits": ok + b"Content-Length: 1" + b"0" * 29 + b"\r\n\r\nxx",
        "length of 5,000 digits": ok + b"Content-Length: 1" + b"0" * 4999 + b"\r\n\r\nxx",
        "two lengths": ok + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nxxx",
        "length and chunks": ok + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "length that lies above": ok + b"Content-Length: 1000\r\n\r\n{}",
        "length that lies below": ok + b"Content-Length: 1\r\n\r\n{}",
        "chunk of size zz": chunked + b"zz\r\nxx\r\n0\r\n\r\n",
        "chunk of negative size": chunked + b"-5\r\nxx\r\n0\r\n\r\n",
        "chunk of size 0x2": chunked + b"0x2\r\n{}\r\n0\r\n\r\n",
        "chunk without a size": chunked + b"\r\n{}\r\n0\r\n\r\n",
        "chunk of 20 digits": chunked + b"F" * 20 + b"\r\n{}\r\n0\r\n\r\n",
        "chunk longer than its size": chunked + b"2\r\n{}{}\r\n0\r\n\r\n",
        "chunk that ends early": chunked + b"5\r\n{}",
        "chunks without their end": chunked + b"2\r\n{}\r\n",
        "gzip": response(gzip.compress(b"{}"), "Content-Encoding: gzip\r\n"),
        "gzip of 400 MiB": response(_bomb(), "Content-Encoding: gzip\r\n"),
        "deflate of nothing": response(b"x", "Content-Encoding: deflate\r\n"),
        "unknown encoding": response(b"{}", "Content-Encoding: br\r\n"),
    }
    for call in ("infer", "server_info"):
        for name, answer in answers.items():
            yield HttpCase(f"framing: {name}", call, _once(answer))
    unasked = response(b"[]") * 2
    yield HttpCase("framing: two answers to one request", "server_info", _once(unasked))


def _bomb() -> bytes:
    """400 MiB of zeros in gzip."""
    return gzip.compress(bytes(16 << 20)) * 25


def _broken_documents() -> Iterator[HttpCase]:
    texts = {
        "nothing": b"",
        "null": b"null",
        "a list": b"[]",
        "a number": b"1",
        "a string": b'"x"',
        "no JSON": b"<html>hello",
        "200,000 brackets": b"[" * 200_000,
        "200,000 braces": b'{"a":' * 200_000,
        "no UTF-8": b'{"name": "\xff\xfe"}',
        "UTF-16": "{}".encode("utf-16"),
        "a number of 10,000 digits": b'{"name": 1' + b"0" * 10_000 + b"}",
        "a surrogate": b'{"name": [], "outputs": "\\ud800", "parameters": "\\ud800", "model_stats": "\\ud800"}',
    }
    for call in ("infer", "config", "statistics", "server_info"):
        for name, data in texts.items():
            yield HttpCase(f"document: {name}", call, _once(response(data)))
    for call, documents in _WRONG_FIELDS.items():
        for text in documents:
            serve = _statistics(text) if call == "statistics" else _once(_json(text))
            yield HttpCase(f"fields: {text:.90}", call, serve)
    for name, data in _ERRORS.items():
        yield HttpCase(f"error: {name}", "infer", _once(response(data, status=400)))


def _json(text: str) -> bytes:
    return response(text.encode())


def _statistics(text: str) -> Serve:
    return _config_then(_once(_json(text)))


_WRONG_FIELDS: Mapping[str, list[str]] = {
    "config": [
        '{"parameters": null}',
        '{"parameters": [1]}',
        '{"parameters": {"max_body_bytes": 5}}',
        '{"parameters": {"max_body_bytes": {"string_value": 5}}}',
        '{"parameters": {"max_body_bytes": {"string_value": "%s"}}}' % ("9" * 5000),
        '{"output": null}',
        '{"output": {"a": 1}}',
        '{"output": [null]}',
        '{"output": [{"dims": 5}]}',
        '{"output": [{"dims": [1.5], "data_type": "TYPE_FP32"}]}',
        '{"output": [{"dims": [NaN], "data_type": "TYPE_FP32"}]}',
        '{"output": [{"dims": [5], "data_type": 5}]}',
    ],
    "statistics": [
        "{}",
        '{"model_stats": null}',
        '{"model_stats": {}}',
        '{"model_stats": [null]}',
        '{"model_stats": [[]]}',
        '{"model_stats": [{"inference_count": "abc"}]}',
        '{"model_stats": [{"inference_count": -1}]}',
        '{"model_stats": [{"inference_count": 1.5}]}',
        '{"model_stats": [{"inference_count": NaN}]}',
        '{"model_stats": [{"inference_count": 1e999}]}',
        '{"model_stats": [{"inference_count": null}]}',
        '{"model_stats": [{"execution_count": true}]}',
        '{"model_stats": [{"execution_count": 99999999999999999999999}]}',
        '{"model_stats": [{"inference_stats": []}]}',
        '{"model_stats": [{"inference_stats": {"success": 1}}]}',
        '{"model_stats": [{"inference_stats": {"queue": {"count": {}}}}]}',
        '{"model_stats": [{"inference_stats": {"queue": {"ns": "1.5"}}}]}',
        '{"model_stats": [%s{}]}' % ("{}," * 100_000),
    ],
    "server_info": [
        '{"extensions": null}',
        '{"extensions": 5}',
        '{"extensions": {"a": 1}}',
        '{"extensions": [null]}',
        '{"name": 5}',
        '{"name": null}',
        '{"version": []}',
    ],
}

_ERRORS = {
    "deep": b'{"error": ' + b"[" * 100_000,
    "a list": b'{"error": []}',
    "a deep list": b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}",
    "spaces": b'{"error": "' + b" " * 400_000 + b'"}',
    "slashes": b'{"error": "' + b"/a-" * 100_000 + b'"}',
    "a long reason": b'{"error": "bad image (corrupt): ' + b"x" * 409_000 + b'"}',
    "signs for terminals": b'{"error": "\\u001b[2J\\u001b]0;title\\u0007"}',
    "no UTF-8": b"\xff\xfe\xfd",
    "a surrogate": b'{"error": "\\ud800"}',
}


def tensors(outputs: object, data: bytes, **head: object) -> bytes:
    """An answer to an inference: a head of JSON with these outputs, then the data."""
    text = json.dumps({"outputs": outputs, **head}).encode()
    return response(text + data, f"{_HEAD_LENGTH}: {len(text)}\r\n")


def _output(**changes: object) -> dict[str, object]:
    output: dict[str, object] = {"name": "scores", "datatype": "FP32", "shape": [1, 1]}
    return {**output, "parameters": {"binary_data_size": 4}, **changes}


_WRONG_OUTPUTS: list[object] = [None, {}, "x", 5, [None], [1], [[]], ["x"]]
_WRONG_VALUES: Mapping[str, list[object]] = {
    "name": [None, 5, [], {}],
    "datatype": [None, 5, [], "BF16", "x" * 10_000],
    "shape": [
        *(None, "1", {}, [-1], [1.5], [True], ["1"], [None], [[1]], [2]),
        *([2**63], [2**70], [10**4000], [1] * 50, [2**32] * 50_000),
    ],
    "parameters": [None, [], 5, {}],
}
_WRONG_SIZES: list[object] = [None, "4", -4, 1.5, 5, 3, 2**63, True, []]
_EMPTY_SHAPES: list[list[int]] = [[0, 2**62], [2**63, 0]]


def _broken_tensors() -> Iterator[HttpCase]:
    one = bytes(4)
    outputs: list[tuple[object, bytes]] = [
        *((value, b"") for value in _WRONG_OUTPUTS),
        *(([_output(**{name: value})], one) for name, values in _WRONG_VALUES.items() for value in values),
        *(([_output(parameters={"binary_data_size": size})], one) for size in _WRONG_SIZES),
        *(([_output(shape=shape, parameters={"binary_data_size": 0})], b"") for shape in _EMPTY_SHAPES),
        ([_output(), _output()], one * 2),
        ([_output()], one + b"more"),
        ([_output(datatype="BOOL", shape=[4])], b"\7\7\7\7"),
        ([_output() for _ in range(5000)], one),
        *(
            ([_output(datatype="BYTES", shape=[count], parameters={"binary_data_size": len(data)})], data)
            for count, data in (
                (1, b"\xff\xff\xff\xff"),
                (1, b"\xff\xff\xff\x7fabc"),
                (1, b"\5\0"),
                (2, b"\1\0\0\0a"),
                (1, b"\1\0\0\0a" * 2),
                (0, b"\0\0\0\0"),
                (1_000_000, bytes(4_000_000)),
                (2**62, b"\0\0\0\0"),
            )
        ),
    ]
    for index, (value, data) in enumerate(outputs):
        seen = f"tensors {index}: {json.dumps(value):.80}"
        yield HttpCase(seen, "infer", _once(tensors(value, data)))
    yield HttpCase("tensors: the id of another request", "infer", _once(tensors([_output()], one, id="other")))
    yield HttpCase("tensors: an id that is no string", "infer", _once(tensors([_output()], one, id=5)))
    text = json.dumps({"outputs": [_output()]}).encode()
    for stated in ("abc", "-5", "", "1e3", "+5", "999999", "5", "0", "9" * 30):
        answer = response(text + one, f"{_HEAD_LENGTH}: {stated}\r\n")
        yield HttpCase(f"tensors: a head of length {stated!r}", "infer", _once(answer))


def packed(*strings: bytes) -> bytes:
    """Strings as tensors hold them."""
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def results() -> dict[str, list[tuple[str, str, list[int], bytes]]]:
    """Well-formed tensors, as name, datatype, shape and data, that are no classification."""
    scores = ("scores", "FP32", [1, 2], struct.pack("<2f", 0.9, 0.1))
    ids = ("class_ids", "INT32", [1, 2], struct.pack("<2i", 5, 6))
    labels = ("labels", "BYTES", [1, 2], packed(b"a", b"b"))

    def with_scores(*values: float) -> list[tuple[str, str, list[int], bytes]]:
        return [("scores", "FP32", [1, 2], struct.pack("<2f", *values)), ids, labels]

    large = ("scores", "FP32", [1, 1_000_000], bytes(4_000_000))
    large_ids = ("class_ids", "INT32", [1, 1_000_000], bytes(4_000_000))
    return {
        "no outputs": [],
        "no scores": [ids, labels],
        "no class_ids": [scores, labels],
        "NaN": with_scores(float("nan"), 0.1),
        "infinity": with_scores(float("inf"), 0.1),
        "the worst first": with_scores(0.1, 0.9),
        "a negative id": [scores, ("class_ids", "INT32", [1, 2], struct.pack("<2i", -1, 6)), labels],
        "ids that are floats": [scores, ("class_ids", "FP32", [1, 2], bytes(8)), labels],
        "scores that are strings": [("scores", "BYTES", [1, 2], packed(b"a", b"b")), ids, labels],
        "labels that are numbers": [scores, ids, ("labels", "FP32", [1, 2], bytes(8))],
        "labels that are no UTF-8": [scores, ids, ("labels", "BYTES", [1, 2], packed(b"\xff", b"b"))],
        "more labels than scores": [scores, ids, ("labels", "BYTES", [1, 3], packed(b"a", b"b", b"c"))],
        "three dimensions": [(name, kind, [1, 1, 2], data) for name, kind, _, data in (scores, ids, labels)],
        "two images": [(name, kind, [2, 1], data) for name, kind, _, data in (scores, ids, labels)],
        "no class": [(name, kind, [1, 0], b"") for name, kind, _, _ in (scores, ids, labels)],
        "a million classes": [large, large_ids],
    }


def _broken_results() -> Iterator[HttpCase]:
    for name, outputs in results().items():
        rows = [
            _output(name=output, datatype=kind, shape=shape, parameters={"binary_data_size": len(data)})
            for output, kind, shape, data in outputs
        ]
        data = b"".join(data for *_, data in outputs)
        yield HttpCase(f"results: {name}", "classify", _once(tensors(rows, data)))
