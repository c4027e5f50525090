"""Traffic that no server wants: bad pictures, bad streams of video, connections that come and go.

Unary gRPC calls that their callers give up are not among it: tritonserver 2.51 dies of some thousand of them.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random

from PIL import Image

from benchmarks.hostile import headers, streams
from benchmarks.hostile.streams import Clip
from onestream.client import Client, OnestreamError

_TIMEOUT_S = 30.0
_HEAVY_SIDE, _BEYOND_SIDE = 4000, 9000
_KIBIBYTE = 1 << 10
_BUILT_BYTES = 100 * _KIBIBYTE


class Addresses:
    """Where a server listens; plain, so that it reaches another process."""

    def __init__(self, *, grpc_url: str, http_url: str, grpc_address: str, http_address: str) -> None:
        self.grpc_url, self.http_url = grpc_url, http_url
        self.grpc_address, self.http_address = grpc_address, http_address


def bad_pictures(photo: bytes, random: Random) -> Iterator[bytes]:
    """Pictures of every bad kind in random order, without end: ``photo``, a JPEG, cut, changed, and others."""
    frame = photo.index(b"\xff\xc0")
    bomb = photo[: frame + 5] + (30000).to_bytes(2, "big") * 2 + photo[frame + 9 :]
    kinds: Sequence[Callable[[], bytes]] = (
        lambda: b"",
        lambda: b"this is a text and no picture" * random.randrange(1, 2000),
        lambda: photo[: random.randrange(1, len(photo))],
        lambda: bomb,
        lambda: random.randbytes(random.randrange(1, 400 * _KIBIBYTE)),
        lambda: _flat(_HEAVY_SIDE),
        lambda: _flat(_BEYOND_SIDE),
        lambda: _changed(photo, random),
        lambda: random.choice(_built()),
    )
    while True:
        yield random.choice(kinds)()


def send_bad_pictures(addresses: Addresses, photo: bytes, random: Random) -> Iterator[None]:
    """Send one with every step, over gRPC and HTTP, to both forms."""
    with (
        Client(addresses.grpc_url, timeout_s=_TIMEOUT_S) as one,
        Client(addresses.http_url, timeout_s=_TIMEOUT_S) as other,
    ):
        for picture in bad_pictures(photo, random):
            with contextlib.suppress(OnestreamError):
                random.choice((one, other)).classify(picture, pipeline=random.choice(("classify", "classify_fused")))
            yield


def send_bad_streams(addresses: Addresses, clip: Clip, random: Random) -> Iterator[None]:
    """Begin and leave one with every step, of every kind and with or without the metadata that kills Triton 2.51."""
    kinds = list(streams.KINDS.values())
    while True:
        with streams.connected(addresses.grpc_url, None) as stub:
            streams.attack(stub, random.choice(kinds)(clip, random), header=random.random() < 0.5)
        yield


def come_and_go(addresses: Addresses, photo: bytes, random: Random) -> Iterator[None]:
    """Open and leave a connection with every step: at once, in the midst of a request, after one that is none."""
    host, port = addresses.http_address.rsplit(":", 1)
    head = (
        "POST /v2/models/classify/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: 0\r\nContent-Length: {len(photo)}\r\n\r\n"
    ).encode()
    contents = (b"", head, head + photo[: len(photo) // 2], head + photo, random.randbytes(500) + b"\r\n\r\n")
    while True:
        if random.random() < 0.2:
            connection = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
            connection.request("GET", random.choice(("/v2/models/classify/stats", "/v2/health/ready", "/nowhere")))
            connection.getresponse().read()
            connection.close()
        else:
            with socket.create_connection((host, int(port)), _TIMEOUT_S) as left:
                left.sendall(random.choice(contents))
        yield


def _changed(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 4, 40))):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


@cache
def _built() -> list[bytes]:
    """Files that are made to keep a header reader busy."""
    return [build(_BUILT_BYTES) for build in headers.BUILT.values()]


@cache
def _flat(side: int) -> bytes:
    """A PNG of one colour, small as a file."""
    file = io.BytesIO()
    Image.new("L", (side, side)).save(file, "PNG")
    return file.getvalue()
