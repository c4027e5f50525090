"""Hostile requests at a proxy, over HTTP as bytes and over gRPC, with good ones beside."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as messages

from onestream.client import Client, OnestreamError
from onestream.serving.proxy.nginx_config import MOST_JSON_BYTES

MODEL = "classify"
STREAM_MODEL = "classify_video"
PHOTO = Path(__file__).parents[2] / "examples" / "photos" / "coffee.jpg"
NEST_BYTES = 200_000
"""Of open brackets: Triton 2.51 on threads of 8 MB dies of somewhat more than 100,000."""
CHUNKS = 600_000
"""Of one byte: their addresses overrun the stack of Triton 2.51."""
_SERVICE = "/inference.GRPCInferenceService"
_CHUNKS_AT_ONCE = 6000
_ANSWER_TIMEOUT_S = 60.0
_QUEUED_MESSAGES = 40
UNANSWERED = 0
"""The status of a request at which the connection ended without an answer."""


@dataclass(frozen=True, slots=True)
class HttpAttack:
    """One request as it goes over the wire, in parts.

    Attributes:
        name: what is tried.
        parts: the bytes, head first.
        refused: the statuses that a proxy may answer with; None where some of its kind are passed on and answered.
    """

    name: str
    parts: Sequence[bytes]
    refused: frozenset[int] | None


def http_attacks() -> Iterator[HttpAttack]:
    """Every request that ends Triton 2.51, or would get past a bound, by one way of writing it each."""
    nest = b"[" * NEST_BYTES
    length = f"Content-Length: {len(nest)}"
    head_length = "Inference-Header-Content-Length"
    bomb = gzip.compress(nest)
    bomb_length = f"Content-Length: {len(bomb)}"

    def attack(name: str, headers: Sequence[str], *body: bytes, status: Sequence[int], path: str = "") -> HttpAttack:
        return HttpAttack(name, [_head(path or f"/v2/models/{MODEL}/infer", headers), *body], frozenset(status))

    too_much_json, malformed = [422], [400, 422]
    # 413 where the length alone is seen first.
    closed = [403, 413]
    yield attack("nested JSON", [length], nest, status=too_much_json)
    page = ["Content-Type: text/plain", "Origin: https://example.org"]
    yield attack("nested JSON of a web page", [*page, length], nest, status=too_much_json)
    yield attack(
        "nested JSON as a form", ["Content-Type: application/x-www-form-urlencoded", length], nest, status=[422]
    )
    for value in (
        "abc",
        "+5",
        "-1",
        "0x10",
        "1e3",
        "12 34",
        "10000",
        "00000",
        str(2**31),
        str(2**64),
        "200000, 5",
        "٣",
    ):
        yield attack(f"a head of {value!r} bytes", [f"{head_length}: {value}", length], nest, status=malformed)
    for first, second in (("200000", "0"), ("abc", "5")):
        both = [f"{head_length}: {first}", f"{head_length}: {second}", length]
        yield attack(f"heads of {first} and {second} bytes", both, nest, status=malformed)
    yield attack("an empty length of the head", [f"{head_length}:", length], nest, status=malformed)
    yield attack("a head in chunks", ["Transfer-Encoding: chunked"], b"30d40\r\n", nest, b"\r\n0\r\n\r\n", status=[422])
    both = [length, "Transfer-Encoding: chunked"]
    yield attack("two lengths", both, b"30d40\r\n", nest, b"\r\n0\r\n\r\n", status=malformed)
    for value in ("+200000", "0x30d40", "-1", "200000, 5"):
        yield attack(f"a body of {value!r} bytes", [f"Content-Length: {value}"], nest, status=malformed)
    for value in ("gzip", "deflate", "GZIP", "identity, gzip"):
        encoded = [f"Content-Encoding: {value}", bomb_length]
        yield attack(f"a body in {value}", encoded, bomb, status=[415])
    for path in ("versions/1/infer", "generate", "infer/", "infer%2f", "%69nfer%2e", "infer;x"):
        yield attack(f"nested JSON at {path}", [length], nest, status=closed, path=f"/v2/models/{MODEL}/{path}")
    for path in (
        "/v2/repository/index",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/systemsharedmemory/region/x/register",
    ):
        yield attack(f"nested JSON at {path}", [length], nest, status=closed, path=path)
    yield attack(
        "nested JSON at an encoded path", [length], nest, status=too_much_json, path="/v2/models/classif%79/infer"
    )


def json_value_attacks() -> Iterator[HttpAttack]:
    """A shape beyond all memory with values in JSON, which Triton 2.51 makes room for, in every way of writing it."""
    huge = '"shape":[1,1152921504606846976]'

    def request(head: bytes, *more: bytes) -> list[bytes]:
        return json_request(head, b"".join(more))

    def head(key: str, *, before: str = "", after: str = "") -> str:
        return f'{before}{{"inputs":[{{"name":"image","datatype":"FP64",{huge},{key}:[1]}}]}}{after}'

    plain = head('"data"').encode()
    all_json = _head(f"/v2/models/{MODEL}/infer", [f"Content-Length: {len(plain)}"])
    in_chunks = [f"Inference-Header-Content-Length: {len(plain)}", "Transfer-Encoding: chunked"]
    chunks = [f"{len(plain):x}\r\n".encode(), plain, b"\r\n0\r\n\r\n"]
    # 4 GB for each, filled before the next check: a thread is busy for 17 s.
    many = '{"name":"%s","datatype":"BOOL","shape":[1,4294967296],"data":[true]}'
    both = f'{{"inputs":[{many % "image"},{many % "image"}]}}'.encode()
    spelled: dict[str, Sequence[bytes]] = {
        "a head": request(plain),
        "a head and a picture": request(plain, bytes(100_000)),
        "a head and the largest picture": request(plain, bytes(32 * 1024 * 1024)),
        "a body": [all_json, plain],
        "chunks": [_head(f"/v2/models/{MODEL}/infer", in_chunks), *chunks],
        "two inputs": request(both),
        "an escaped key": request(head('"d\\u0061ta"').encode()),
        "a key and spaces": request(head('"data"\t\r\n ').encode()),
        "two keys": request(head('"data":[],"data"').encode()),
        "a string that ends in a backslash": request(head('"\\\\":"\\"","data"').encode()),
        "a key after a comment": request(head('/*"*/"data"/*"*/').encode()),
        "a key after NaN": request(head('"x":NaN,"y":-Infinity,"data"').encode()),
        "a key after NUL": request(head('\0"data"').encode()),
        "a key after a deep nest": request(head(f'"x":{"[" * 2000}{"]" * 2000},"data"').encode()),
        "a key after many objects": request(head('"x":{},' * 1000 + '"data"').encode()),
        "an array": request(head('"data"', before="[", after="]").encode()),
        "a byte order mark": request(head('"data"', before="\ufeff").encode()),
        "UTF-16": request(head('"data"').encode("utf-16")),
        "spaces": request(head('"data"', before=" \t\r\n", after=" \t\r\n").encode()),
        "open brackets": request(b"{" * MOST_JSON_BYTES, b"{" * 1_000_000),
    }
    for name, parts in spelled.items():
        yield HttpAttack(f"values in JSON: {name}", parts, frozenset([422]))


def passed_http_attacks() -> Iterator[HttpAttack]:
    """What a proxy passes on in a form that does no harm; Triton refuses or answers it."""
    nest = b"[" * NEST_BYTES
    head_length = "Inference-Header-Content-Length"

    def attack(name: str, headers: Sequence[str], *body: bytes) -> HttpAttack:
        return HttpAttack(name, [_head(f"/v2/models/{MODEL}/infer", headers), *body], None)

    at_once = b"1\r\n[\r\n" * _CHUNKS_AT_ONCE
    chunked = [*[at_once] * (CHUNKS // _CHUNKS_AT_ONCE), b"0\r\n\r\n"]
    yield attack("chunks of one byte", [f"{head_length}: 0", "Transfer-Encoding: chunked"], *chunked)
    length = f"Content-Length: {len(nest)}"
    for second in ("200000", "abc", ""):
        yield attack(f"a second head of {second!r}", [f"{head_length}: 5", f"{head_length}: {second}", length], nest)
    yield attack(
        "a head by another name", [f"{head_length}: 5", "Inference_Header_Content_Length: 200000", length], nest
    )
    bomb = gzip.compress(nest)
    for spelled in ("Content_Encoding: gzip", "Content-Encoding:\r\nContent-Encoding: gzip"):
        headers = [f"{head_length}: {min(len(bomb), 9999)}", spelled, f"Content-Length: {len(bomb)}"]
        yield attack("a hidden encoding", headers, bomb)
    deep = b'{"inputs":' + b"[" * 4990 + b"]" * 4990 + b"}"
    yield attack("the deepest nest that passes", [f"Content-Length: {len(deep)}"], deep)
    # JSON that no parser takes beyond the point where the proxy's check and a parser part.
    shape = '"name":"image","datatype":"FP64","shape":[1,1152921504606846976]'
    for key in ('"data\0"', "data", '"Data"', '"x":{}}]}{"data"'):
        malformed = f'{{"inputs":[{{{shape},{key}:[1]}}]}}'.encode()
        yield attack(f"values by the key {key!r}", [f"Content-Length: {len(malformed)}"], malformed)


def random_head(random_: random.Random) -> bytes:
    """A body whose JSON is valid and whose values are hostile: sizes, shapes, types and names."""
    hostile: list[object] = [
        0,
        -1,
        1,
        2**31,
        2**32,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63),
        1e308,
        True,
        None,
        "",
        "x",
        [],
        {},
    ]

    def some(usual: object) -> object:
        return usual if random_.random() < 0.9 else random_.choice(hostile)

    tensor: dict[str, object] = {
        "name": some("image"),
        "datatype": some(random_.choice(["UINT8", "BYTES", "FP32", "BOOL", "FP16"])),
        "shape": some([some(1), some(4)]),
    }
    if random_.random() < 0.2:
        tensor["data"] = some([some(1), some(2), some([3]), some("4")])
    if random_.random() < 0.6:
        tensor["parameters"] = some({"binary_data_size": some(4), "shared_memory_region": some("x")})
    output = {"name": some("labels"), "parameters": some({"binary_data": some(True), "classification": some(5)})}
    parameters = {
        name: some(1)
        for name in (
            "sequence_id",
            "sequence_start",
            "priority",
            "timeout",
            "binary_data_output",
            "triton_enable_empty_final_response",
        )
        if random_.random() < 0.3
    }
    fields = {
        "id": some("a"),
        "inputs": some([tensor] * random_.choice([1, 1, 1, 2, 30])),
        "outputs": some([output]),
        "parameters": some(parameters),
    }
    return json.dumps(fields).encode()


def send_http(address: str, parts: Sequence[bytes]) -> tuple[int, bytes]:
    """Send one request as it stands; the answer's status, or ``UNANSWERED``, and its head and body."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_ANSWER_TIMEOUT_S) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except OSError:
            pass  # refused before it was sent; the answer may be there
        received = b""
        try:
            while block := connection.recv(65536):
                received += block
        except OSError:
            pass
    line = received.split(b" ", 2)
    return (int(line[1]) if len(line) == 3 and line[1].isdigit() else UNANSWERED), received


def grpc_messages(random_: random.Random) -> Iterator[bytes]:
    """Messages of ModelInfer that are hostile as protobuf: nests, lengths, fields without number."""
    yield b"\x0b" * NEST_BYTES  # groups in groups
    yield b"\xfb\x3f" * NEST_BYTES
    for _ in range(3):
        nested = b""
        for _ in range(200):
            nested = b"\x2a" + _varint(len(nested)) + nested
        yield nested
    yield b"\x3a\xff\xff\xff\xff\x0f"  # a string of 4 GB that is not there
    yield b"\x3a\x00" * 100_000  # tensors without bytes
    usual = messages.ModelInferRequest(model_name=MODEL, raw_input_contents=[b"abc"])
    tensor = usual.inputs.add(name="image", datatype="UINT8", shape=[1, 2**62])
    tensor.contents.uint_contents.extend([1, 2, 3])
    yield usual.SerializeToString()
    for shape in ([], [0], [-1], [2**63 - 1, 2**63 - 1], [1] * 1000):
        odd = messages.ModelInferRequest(model_name=MODEL, raw_input_contents=[b"abc"])
        odd.inputs.add(name="image", datatype=random_.choice(["UINT8", "BYTES", "", "FP16"]), shape=shape)
        yield odd.SerializeToString()
    whole = usual.SerializeToString()
    for _ in range(20):
        flipped = bytearray(whole)
        for _ in range(random_.randint(1, 8)):
            flipped[random_.randrange(len(flipped))] = random_.randrange(256)
        yield bytes(flipped)


def send_grpc(channel: grpc.Channel, message: bytes) -> str:
    """The name of the status that ModelInfer answers to these bytes."""
    call = channel.unary_unary(f"{_SERVICE}/ModelInfer", bytes, bytes)
    try:
        call(message, timeout=_ANSWER_TIMEOUT_S)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def hostile_stream(channel: grpc.Channel, number: int) -> str:
    """A video stream that begins with an error and has more queued, which ends Triton 2.51; how it ended."""

    def parts() -> Iterator[bytes]:
        for index in range(_QUEUED_MESSAGES):
            message = messages.ModelInferRequest(model_name=STREAM_MODEL, raw_input_contents=[b"abc"])
            message.inputs.add(name="message", datatype="UINT8", shape=[3])
            message.parameters["sequence_id"].int64_param = number
            message.parameters["sequence_start"].bool_param = index == 0
            yield message.SerializeToString()

    call = channel.stream_stream(f"{_SERVICE}/ModelStreamInfer", bytes, bytes)
    try:
        for _ in call(parts(), metadata=[("triton_grpc_error", "true")], timeout=_ANSWER_TIMEOUT_S):
            pass
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


@contextmanager
def slow_bodies(address: str, count: int, *, source: str) -> Iterator[list[int]]:
    """Hold requests open that have sent one byte of their body; yields the statuses of those that were refused.

    Args:
        address: ``host:port`` of the proxy's HTTP.
        count: connections, >= 1.
        source: the address that they come from, such as 127.0.0.2.
    """
    head = _head(f"/v2/models/{MODEL}/infer", ["Inference-Header-Content-Length: 0", "Content-Length: 1000"])
    host, _, port = address.rpartition(":")
    answered: list[int] = []
    with ExitStack() as held:
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), source_address=(source, 0))
            held.enter_context(connection)
            connection.sendall(head + b"x")
            # A refusal comes before the next connection is opened; what is held says nothing.
            connection.settimeout(0.02)
            try:
                answered.append(int(connection.recv(4096).split(b" ", 2)[1]))
            except (TimeoutError, IndexError):
                continue
        yield answered


@dataclass
class GoodCalls:
    """Pictures classified over both protocols, one after the other, while others attack."""

    calls: int = 0
    worst_s: float = 0.0
    failures: list[str] = field(default_factory=list)


@contextmanager
def good_calls(http: str, grpc_address: str) -> Iterator[GoodCalls]:
    """Classify a photo again and again until the block ends; every failure is kept with its reason."""
    seen, ended = GoodCalls(), threading.Event()

    def call() -> None:
        with Client(f"http://{http}", retries=0) as by_http, Client(f"grpc://{grpc_address}", retries=0) as by_grpc:
            for client in itertools.cycle((by_http, by_grpc)):
                began = time.monotonic()
                try:
                    assert client.classify(PHOTO).top.label == "espresso"
                except (OnestreamError, AssertionError) as error:
                    seen.failures.append(f"{type(error).__name__}: {error}")
                seen.calls += 1
                seen.worst_s = max(seen.worst_s, time.monotonic() - began)
                if ended.is_set():
                    return

    thread = threading.Thread(target=call, name="good-calls")
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def measure(
    *,
    http: str,
    grpc_address: str,
    rounds: int,
    heads_per_round: int = 100,
    streams_per_round: int = 10,
    seed: int,
    progress: Callable[[str], None],
) -> dict[str, object]:
    """Attack a proxy without TLS and tokens, and count what became of it.

    Args:
        http: ``host:port`` of its HTTP, with this project's default pipeline behind it.
        grpc_address: of its gRPC.
        rounds: how often everything is sent, >= 1.
        heads_per_round: requests with random hostile JSON.
        streams_per_round: video streams that end with an error.
        seed: of what is random.
        progress: receives a line for each round.

    Returns:
        ``hostile_requests``; ``answers`` (how often each status came, by kind); ``let_through`` (names of requests that
        should have been refused and were not); ``good_calls``, ``good_failures`` and ``good_worst_s``;
        ``server_alive`` at the end.
    """
    random_ = random.Random(seed)
    answers: dict[str, Counter[str]] = {kind: Counter() for kind in ("http", "json", "grpc", "stream")}
    let_through: list[str] = []
    with grpc.insecure_channel(grpc_address) as channel, good_calls(http, grpc_address) as good:
        for number in range(rounds):
            for attack in itertools.chain(http_attacks(), json_value_attacks(), passed_http_attacks()):
                status, _ = send_http(http, attack.parts)
                answers["http"][str(status)] += 1
                if attack.refused is not None and status not in attack.refused:
                    let_through.append(f"{attack.name}: {status}")
            for _ in range(heads_per_round):
                status, _ = send_http(http, json_request(random_head(random_), random_.randbytes(4)))
                answers["json"][str(status)] += 1
            for message in grpc_messages(random_):
                answers["grpc"][send_grpc(channel, message)] += 1
            for _ in range(streams_per_round):
                answers["stream"][hostile_stream(channel, random_.randrange(1, 2**62))] += 1
            progress(f"requests: round {number + 1} of {rounds}, {good.calls} good calls, {len(good.failures)} failed")
    with Client(f"grpc://{grpc_address}", retries=0) as client:
        alive = client.is_ready()
    return {
        "hostile_requests": sum(sum(counts.values()) for counts in answers.values()),
        "answers": {kind: dict(sorted(counts.items())) for kind, counts in answers.items()},
        "let_through": let_through,
        "good_calls": good.calls,
        "good_failures": good.failures,
        "good_worst_s": round(good.worst_s, 3),
        "server_alive": alive,
    }


def json_request(head: bytes, data: bytes) -> list[bytes]:
    """A request of a JSON head and binary data, as its parts."""
    headers = [f"Inference-Header-Content-Length: {len(head)}", f"Content-Length: {len(head) + len(data)}"]
    return [_head(f"/v2/models/{MODEL}/infer", headers), head, data]


def _head(path: str, headers: Sequence[str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: proxy", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode()


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])
