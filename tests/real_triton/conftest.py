"""Clients of the one real server, photos, and images that must be refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from image_files import encode
from PIL import Image
from shared_server import SharedServer

from onestream.client import Client

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", params=["grpc", "http"])
def client(server: SharedServer, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(server.grpc_url if request.param == "grpc" else server.http_url, timeout_s=30.0) as connected:
        yield connected


@pytest.fixture(scope="session")
def grpc_client(server: SharedServer) -> Iterator[Client]:
    with Client(server.grpc_url, timeout_s=60.0) as connected:
        yield connected


# Of a module: its region must not be there where later tests in this process count theirs.
@pytest.fixture(scope="module", params=["grpc", "http", "grpc, shared memory", "http, shared memory"])
def any_client(server: SharedServer, request: pytest.FixtureRequest) -> Iterator[Client]:
    """One over each protocol, which sends a picture in its message or by shared memory."""
    url = server.grpc_url if request.param.startswith("grpc") else server.http_url
    with Client(url, timeout_s=60.0, shared_memory="shared" in request.param) as connected:
        yield connected


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))}


@pytest.fixture(scope="session")
def bad_images(photos: dict[str, bytes]) -> dict[str, tuple[bytes, str]]:
    """Images that must be refused, by name, with the code each must get."""
    coffee = photos["coffee"]

    black = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    sof = coffee.index(b"\xff\xc0")
    bomb = coffee[: sof + 5] + (30000).to_bytes(2, "big") * 2 + coffee[sof + 9 : sof + 400] + b"\xff\xd9"
    return {
        "empty": (b"", "empty"),
        "text": (b"hello, this is not an image", "unsupported_format"),
        "gif": (encode(black, "GIF"), "unsupported_format"),
        "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported_format"),
        "avif": (b"\x00\x00\x00\x20ftypavif\x00\x00\x00\x00avifmif1miaf" + bytes(200), "unsupported_format"),
        "wrong magic": (b"\x00\x01" + coffee[2:], "unsupported_format"),
        "cut in the header": (coffee[:100], "corrupt"),
        "cut in the middle": (coffee[: len(coffee) // 2], "corrupt"),
        "cut at the end": (coffee[:-300], "corrupt"),
        "png cut": (encode(black, "PNG")[:-20], "corrupt"),
        "30000x30000 in under 1 KB": (bomb, "too_many_pixels"),
    }
