"""`onestream proxy` with a real nginx, and no Triton behind it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from http_answers import answering
from hypothesis import assume, given
from hypothesis import strategies as st
from patience import wait_until
from proxies import ROOT, RunningCommand, make_certificates, proxy_command, refused
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from onestream.serving.proxy.nginx_config import MOST_JSON_BYTES
from onestream.serving.proxy.tokens import add_token
from onestream.serving.server.triton.ports import free_port

pytestmark = pytest.mark.needs_nginx

UNAVAILABLE = (502, grpc.StatusCode.UNAVAILABLE)


def free_ports() -> tuple[int, int]:
    first = free_port("127.0.0.1")
    return first, next(port for port in iter(lambda: free_port("127.0.0.1"), 0) if port != first)


@contextmanager
def plain_proxy(output: Path, *options: str, server: str = "127.0.0.1:1") -> Iterator[tuple[RunningCommand, int, int]]:
    """A proxy without TLS, with HTTP's and gRPC's port."""
    http_port, grpc_port = free_ports()
    listens = ("--listen", f"127.0.0.1:{http_port}", "--grpc-listen", f"127.0.0.1:{grpc_port}")
    with proxy_command(output, "--no-tls", *listens, "--http", server, "--grpc", server, *options) as running:
        yield running, http_port, grpc_port


def test_a_server_that_is_not_there_is_unavailable_and_the_proxy_stops_clean(tmp_path: Path) -> None:
    with plain_proxy(tmp_path / "output", "--no-tokens") as (running, http_port, grpc_port):
        assert "models: classify, classify_fused, classify_video (no tokens)" in running.text
        running.wait_for("what the server serves is not known: cannot reach http://127.0.0.1:1: ")
        assert answers(http_port, grpc_port, "/v2/models/classify", "ModelMetadata") == UNAVAILABLE
        status, said = posted(http_port, "/v2/models/classify/infer", b"{}")
        assert status == 502
        assert "does not answer" in json.loads(said)["error"]
        (master,) = psutil.Process(running.process.pid).children()
        (folder,) = re.findall(r"-c (\S+)/nginx\.conf", " ".join(master.cmdline()))
    assert running.process.returncode == 0
    assert running.text.endswith("stopped\n")
    assert not Path(folder).exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["the command", "nginx"])
def test_neither_outlives_the_other(tmp_path: Path, killed: str) -> None:
    with plain_proxy(tmp_path / "output", "--no-tokens") as (running, http_port, _):
        (master,) = psutil.Process(running.process.pid).children()
        if killed == "nginx":
            master.kill()
            assert running.process.wait(15) == 1
            running.wait_for("error: nginx ended with status -9")
        else:
            running.process.kill()
            running.process.wait(15)

        def is_closed() -> bool:
            with socket.socket() as caller:
                return caller.connect_ex(("127.0.0.1", http_port)) != 0

        wait_until(is_closed, "nginx still listens")


def test_what_nginx_refuses_is_one_line(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    add_token(tmp_path / "tokens.conf", "alice")
    options = ("--token-file", str(tmp_path / "tokens.conf"), "--listen", f"127.0.0.1:{free_port('127.0.0.1')}")
    message = refused("proxy", *options, "--tls-cert", str(tmp_path / "absent.crt"), "--tls-key", str(certificates.key))
    assert message.startswith("error: nginx refuses the configuration: ")
    assert "absent.crt" in message
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other")
    message = refused("proxy", *options, "--tls-cert", str(certificates.certificate), "--tls-key", str(other.key))
    assert "key values mismatch" in message


def test_a_port_in_use_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listens = ("--listen", address, "--grpc-listen", f"127.0.0.1:{free_port('127.0.0.1')}")
        said = refused("proxy", "--no-tls", "--no-tokens", *listens) + capfd.readouterr().err
    assert f"bind() to {address} failed" in said
    assert "before it served" in said


def answers(http_port: int, grpc_port: int, path: str, method: str) -> tuple[int, grpc.StatusCode]:
    """What is answered to a GET over HTTP, and to an empty message over gRPC."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=10)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    request = getattr(messages, f"{method}Request")()
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, pytest.raises(grpc.RpcError) as failure:
        getattr(GRPCInferenceServiceStub(channel), method)(request, timeout=10)
    return status, failure.value.code()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with plain_proxy(tmp_path / "output", "--no-tokens", "--timeout-s", "1", server=address) as (_, *ports):
            given_up = (504, grpc.StatusCode.DEADLINE_EXCEEDED)
            assert answers(*ports, "/v2/models/classify", "ModelMetadata") == given_up


REFUSED, CLOSED = (401, grpc.StatusCode.UNAUTHENTICATED), (403, grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("options", "health", "statistics"),
    [((), UNAVAILABLE, CLOSED), (("--health-needs-token", "--statistics"), REFUSED, REFUSED)],
    ids=["by default", "as told"],
)
def test_health_and_statistics_are_open_as_told(
    tmp_path: Path, options: tuple[str, ...], health: object, statistics: object
) -> None:
    add_token(tmp_path / "tokens.conf", "alice")
    with plain_proxy(tmp_path / "output", "--token-file", str(tmp_path / "tokens.conf"), *options) as (_, *ports):
        assert answers(*ports, "/v2/health/ready", "ServerReady") == health
        assert answers(*ports, "/v2/models/classify/stats", "ModelStatistics") == statistics


@pytest.mark.parametrize("name", ["local", "public", "cluster"])
def test_nginx_accepts_the_committed_configurations(name: str, tmp_path: Path) -> None:
    proxy = ROOT / "deploy" / "proxy"
    (tmp_path / "tls").mkdir()
    make_certificates(tmp_path / "tls")
    (tmp_path / "tokens").mkdir()
    if name == "local":
        shutil.copy(proxy / "open" / "tokens.conf", tmp_path / "tokens")
    else:
        add_token(tmp_path / "tokens" / "tokens.conf", "alice")
    for source, target in ((proxy / "nginx.conf", "nginx.conf"), (proxy / "listen" / f"{name}.conf", "listen.conf")):
        # The name of compose's network, and the places of containers.
        text = source.read_text(encoding="utf-8")
        text = text.replace(" /tmp/", f" {tmp_path}/").replace("/etc/onestream", str(tmp_path))
        text = text.replace("onestream:", "127.0.0.1:").replace("0.0.0.0:", "127.0.0.1:")
        (tmp_path / target).write_text(text, encoding="utf-8")
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    command = [program, "-e", "stderr", "-t", "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "test is successful" in done.stderr
    assert "[warn]" not in done.stderr


LOADED = json.dumps({"model_stats": [{"name": "classify"}, {"name": "classify_model"}]}).encode()


@pytest.fixture(scope="module")
def before_a_glad_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The HTTP port of a proxy without tokens before a server that sends back what it gets, and what it prints."""
    output = tmp_path_factory.mktemp("proxy") / "output"
    with (
        answering(lambda _path, body: (200, body or LOADED)) as server,
        plain_proxy(output, "--no-tokens", server=server) as (_, http_port, _),
    ):
        yield http_port, output


def test_what_the_server_has_not_loaded_is_named(before_a_glad_server: tuple[int, Path]) -> None:
    said = "of these the server serves classify now; it has not loaded classify_fused, classify_video"
    wait_until(lambda: said in before_a_glad_server[1].read_text(encoding="utf-8"), said)


Passes = Callable[[bytes, bytes], bool]


@pytest.fixture(scope="module")
def passes(before_a_glad_server: tuple[int, Path]) -> Iterator[Passes]:
    """Whether the proxy lets a request of this JSON and these bytes after it through."""
    connection = http.client.HTTPConnection("127.0.0.1", before_a_glad_server[0], timeout=10)

    def passed(head: bytes, picture: bytes) -> bool:
        headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "text/html"}
        connection.request("POST", "/v2/models/classify/infer", head + picture, headers)
        answer = connection.getresponse()
        received = answer.read()
        assert answer.status == 422 or (answer.status, received) == (200, head + picture)
        return answer.status == 200

    yield passed
    connection.close()


_KEYS = st.text() | st.sampled_from(["data", "Data", "data ", "name", "\\data", 'data":', "{", "}"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=12,
)


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from keys(inner)


@given(
    value=st.dictionaries(_KEYS, _JSON, max_size=3),
    around=st.text(" \t\r\n", max_size=3),
    colon=st.sampled_from([":", " \t:\r\n "]),
    escaped=st.booleans(),
    picture=st.binary(max_size=20),
)
def test_json_without_values_passes_and_no_other(
    passes: Passes,
    value: dict[str, object],
    around: str,
    colon: str,
    escaped: bool,
    picture: bytes,
) -> None:
    text = around + json.dumps(value, ensure_ascii=escaped, separators=(",", colon)) + around
    head = text.encode("utf-8", "surrogatepass")
    assume(0 < len(head) <= MOST_JSON_BYTES)
    assert passes(head, picture) == ("data" not in keys(value) and "\\" not in text)


@pytest.mark.parametrize(
    "head",
    [b"", b" ", b"[]", b"{", b"}", b'{"a":1', b'{"a', b'{"a":{}', b"\xef\xbb\xbf{}", b"/**/{}", b"{/**/}", b"\0{}"],
)
def test_what_does_not_begin_with_a_whole_object_does_not_pass(passes: Passes, head: bytes) -> None:
    assert not passes(head.ljust(1, b"x"), b"\xff\xd8")


def test_the_head_is_read_up_to_its_most_bytes_and_nothing_of_the_picture(passes: Passes) -> None:
    whole = b"{" + b" " * (MOST_JSON_BYTES - 2) + b"}"
    assert passes(whole, bytes(100))
    assert not passes(whole[:-1] + b" ", b"}")
    assert passes(b"{}", b'{"data":[1]}\\' * 100)


def posted(http_port: int, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=10)
    connection.request("POST", path, body)
    answer = connection.getresponse()
    received = answer.read()
    connection.close()
    return answer.status, received


def test_the_log_holds_the_path_that_was_asked_for(before_a_glad_server: tuple[int, Path]) -> None:
    http_port, output = before_a_glad_server
    for head in (b"{}", b"[]"):
        posted(http_port, "/v2/models/classify/infer", head)

    def logged() -> list[tuple[str, str]]:
        return re.findall(r'"POST (\S+)" (\d+)', output.read_text(encoding="utf-8"))

    expected = [("/v2/models/classify/infer", "200"), ("/v2/models/classify/infer", "422")]
    wait_until(lambda: logged()[-2:] == expected, "both in the log")


def test_what_is_for_nginx_itself_is_closed_to_callers(before_a_glad_server: tuple[int, Path]) -> None:
    for path in ("/checked/v2/models/classify/infer", "/body-is-read"):
        status, said = posted(before_a_glad_server[0], path, b'{"data":[1]}')
        assert status == 403
        assert b"this is closed" in said
