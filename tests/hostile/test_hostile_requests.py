"""Requests and streams that end Triton 2.51 by themselves: at a proxy, or without one, good callers go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from clip_files import write_video
from closed_server import Closed
from proxies import plain_proxy
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from benchmarks.hostile import streams
from benchmarks.hostile.requests import (
    CHUNKS,
    NEST_BYTES,
    PHOTO,
    HttpAttack,
    good_calls,
    http_attacks,
    json_request,
    json_value_attacks,
    measure,
    send_http,
    slow_bodies,
)
from onestream.client import Client, ServerOverloaded
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.needs_nginx, pytest.mark.slow]

INFER = "POST /v2/models/classify/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
REQUESTS_PER_CALLER = 8
STREAMS_OF_A_KIND = 4
"""Half of them with the metadata by which tritonserver died, of which three were enough."""


@pytest.fixture(scope="module")
def own_server(closed: Closed) -> Server:
    return closed.server


def proxy_before(server: Server, output: Path, *options: str) -> AbstractContextManager[tuple[str, str]]:
    return plain_proxy(output, *options, http=server.http_address, grpc=server.grpc_address)


@pytest.fixture(scope="module")
def proxy(own_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with proxy_before(own_server, tmp_path_factory.mktemp("proxy") / "output") as addresses:
        yield addresses


def test_hostile_requests_hurt_nobody(proxy: tuple[str, str]) -> None:
    http, grpc_address = proxy
    seen = measure(http=http, grpc_address=grpc_address, rounds=1, seed=1, streams_per_round=20, progress=print)
    assert seen["let_through"] == []
    assert seen["good_failures"] == []
    assert seen["good_calls"]
    assert seen["server_alive"]


@pytest.mark.parametrize("attack", list(http_attacks()), ids=lambda attack: attack.name)
def test_a_refusal_says_why(proxy: tuple[str, str], attack: HttpAttack) -> None:
    status, answer = send_http(proxy[0], attack.parts)
    assert attack.refused is not None
    assert status in attack.refused
    if status == 422:
        reason = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert reason.startswith("the JSON of a request may have 9999 bytes")
        assert re.search(r"; this has (\d+ bytes|no length|no number)\. ", reason)


@pytest.mark.parametrize("attack", list(json_value_attacks()), ids=lambda attack: attack.name)
def test_values_in_json_do_not_reach_triton(proxy: tuple[str, str], attack: HttpAttack) -> None:
    status, answer = send_http(proxy[0], attack.parts)
    assert status == 422
    reason = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert "the values of inputs come as binary data" in reason


@pytest.mark.parametrize(
    ("name", "picture", "status", "reason"),
    [
        ("image", b"abcd", 400, b"bad image (unsupported_format)"),
        ("data", PHOTO.read_bytes(), 400, b"unexpected inference input 'data'"),
        ("image", PHOTO.read_bytes(), 200, b"espresso"),
    ],
    ids=["a bad image", "no such input", "a photo"],
)
@pytest.mark.parametrize("spaces", ["", " \n"])
def test_values_as_binary_data_pass_and_triton_s_answers_come_back(
    proxy: tuple[str, str], name: str, picture: bytes, status: int, reason: bytes, spaces: str
) -> None:
    size = len(picture)
    tensor = {"name": name, "datatype": "UINT8", "shape": [1, size], "parameters": {"binary_data_size": size}}
    outputs = [{"name": "labels"}]
    head = f"{spaces}{json.dumps({'inputs': [tensor], 'outputs': outputs})}{spaces}".encode()
    answered, answer = send_http(proxy[0], json_request(head, picture))
    assert (answered, reason in answer) == (status, True), answer


def test_slow_bodies_of_one_address_leave_room_for_others(own_server: Server, tmp_path: Path) -> None:
    options = ("--requests-per-caller", str(REQUESTS_PER_CALLER), "--slow-client-s", "60")
    with proxy_before(own_server, tmp_path / "output", *options) as (http, grpc_address):
        with slow_bodies(http, 5 * REQUESTS_PER_CALLER, source="127.0.0.2") as refused:
            assert refused == [429] * (4 * REQUESTS_PER_CALLER)
            with good_calls(http, grpc_address) as good:
                pass
            assert good.calls
            assert good.failures == []
        with slow_bodies(http, REQUESTS_PER_CALLER, source="127.0.0.1") as refused:
            assert refused == []
            for url in (f"http://{http}", f"grpc://{grpc_address}"):
                with Client(url, retries=0) as client, pytest.raises(ServerOverloaded, match="too many requests"):
                    client.classify(PHOTO)


def test_idle_streams_of_one_caller_are_bounded(own_server: Server, tmp_path: Path) -> None:
    options = ("--requests-per-caller", str(REQUESTS_PER_CALLER))
    with proxy_before(own_server, tmp_path / "output", *options) as (_, grpc_address), ExitStack() as opened:
        ended = Event()
        opened.callback(ended.set)

        def silence() -> Iterator[messages.ModelInferRequest]:
            ended.wait()
            yield from ()

        codes: list[grpc.StatusCode | None] = []
        for number in range(REQUESTS_PER_CALLER + 3):
            # Streams on one connection would wait in the client's library.
            own = [("grpc.use_local_subchannel_pool", 1)]
            channel = opened.enter_context(grpc.insecure_channel(grpc_address, options=own))
            call = GRPCInferenceServiceStub(channel).ModelStreamInfer(silence())
            opened.callback(call.cancel)
            grpc.channel_ready_future(channel).result(10)
            # A stream that is let through says nothing before its first message.
            codes.append(None if number < REQUESTS_PER_CALLER else call.code())
        assert codes == [None] * REQUESTS_PER_CALLER + [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/json", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
@pytest.mark.parametrize("body", [b"[" * NEST_BYTES, b"x" * 6_000_000, None], ids=["deep", "large", "chunks"])
def test_bodies_that_fill_a_small_stack_do_not_end_triton(
    own_server: Server, kind: str | None, body: bytes | None
) -> None:
    pid = own_server.pid
    head = f"{INFER}" + (f"Content-Type: {kind}\r\n" if kind else "")
    if body is None:
        parts = [f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n[\r\n" * CHUNKS, b"0\r\n\r\n"]
    else:
        parts = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode(), body]
    assert send_http(own_server.http_address, parts)[0] in (400, 500)
    with Client(own_server.http_url) as client:
        assert client.classify(PHOTO).top.label == "espresso"
    assert own_server.pid == pid


@pytest.mark.parametrize("way", ["direct", "proxy"])
def test_hostile_streams_hurt_nobody(own_server: Server, proxy: tuple[str, str], way: str, tmp_path: Path) -> None:
    url = own_server.grpc_url if way == "direct" else f"grpc://{proxy[1]}"
    sent = STREAMS_OF_A_KIND * len(streams.KINDS)
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=20, size_hw=(240, 320))
    pid = own_server.pid
    said: list[str] = []
    found: dict[str, Any] = streams.measure(url=url, clip=clip, streams=sent, seed=3, progress=said.append)
    assert found["alive"]
    assert found["hurt"] == []
    assert found["good_streams"] > 1
    assert own_server.is_running
    assert own_server.pid == pid
    assert own_server.restarts == {}
    # Where the server says why it ends a stream, it says the right thing.
    for kind, code in {
        "pictures too large": "too_large",
        "unknown codec": "unsupported_codec",
        "too many frames a second": "too_fast",
        "an older version": "bad_message",
        "garbage as a message": "bad_message",
        "garbage alone": "bad_message",
        "flood of start codes": "failed",
        "flood of information": "failed",
        "a packet beyond the buffer": "too_large",
        "credit without end": "flow",
        "bad pictures": "Triton's error",
    }.items():
        assert found["ends"][kind] == {code: STREAMS_OF_A_KIND}
