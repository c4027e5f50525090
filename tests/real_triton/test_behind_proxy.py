"""`onestream proxy`: a real nginx in front of a real Triton, with TLS and tokens."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from clip_files import write_video
from gate import ROOT, Gate, gate_before
from google.protobuf.descriptor import MethodDescriptor
from patience import PATIENCE_S, wait_until
from shared_server import SharedServer
from tritonclient.grpc import service_pb2 as messages

from onestream.client import BadImage, Client

pytestmark = [pytest.mark.needs_triton, pytest.mark.needs_nginx, pytest.mark.slow]

PHOTO = ROOT / "examples" / "photos" / "coffee.jpg"
SERVICE = "/inference.GRPCInferenceService"
LIMIT = 32 * 1024 * 1024
SLOW_CLIENT_S = 2
OPEN_METHODS = {"ServerLive", "ServerReady"}
TOKEN_METHODS = {"ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelInfer", "ModelStreamInfer"}
METHODS: list[MethodDescriptor] = list(messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods)


@pytest.fixture(scope="module")
def gate(server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("gate")
    with gate_before(server, folder, "--slow-client-s", str(SLOW_CLIENT_S)) as opened:
        yield opened


@pytest.mark.parametrize("given", [None, "0" * 64, "", "half", "with space", "all"])
def test_only_a_whole_token_passes(gate: Gate, given: str | None) -> None:
    token = {"half": gate.token[:32], "with space": f"{gate.token} x", "all": gate.token}.get(given or "", given)
    status, body = gate.request("GET", "/v2/models/classify", token=token)
    assert status == (200 if given == "all" else 401), body
    if given != "all":
        assert "token" in json.loads(body)["error"]


def test_grpc_methods_need_a_token_or_are_closed(gate: Gate) -> None:
    for method in TOKEN_METHODS:
        for token in (None, "0" * 64):
            assert gate.code(f"{SERVICE}/{method}", token=token) is grpc.StatusCode.UNAUTHENTICATED
    closed = [f"{SERVICE}/{name}" for name in {one.name for one in METHODS} - OPEN_METHODS - TOKEN_METHODS]
    for method in (*closed, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
        assert gate.code(method, token=gate.token) is grpc.StatusCode.PERMISSION_DENIED, method


def test_health_is_open(gate: Gate) -> None:
    # Models of other tests may load.
    wait_until(lambda: gate.request("GET", "/v2/health/ready")[0] == 200)
    assert gate.request("GET", "/v2/health/live")[0] == 200
    wait_until(lambda: gate.call("ServerReady", messages.ServerReadyRequest()).ready)
    assert gate.call("/grpc.health.v1.Health/Check") == b"\x08\x01", "status SERVING"


def test_the_log_names_callers_and_holds_no_token(gate: Gate) -> None:
    wrong = "f" * 63 + "1"
    assert gate.request("GET", "/v2", token=wrong)[0] == 401
    assert gate.request("GET", "/v2?x=1", token=gate.token)[0] == 200
    gate.command.wait_for('token="alice" "GET /v2" 200')
    gate.command.wait_for('token="" "GET /v2" 401')
    assert gate.token not in gate.command.text
    assert wrong not in gate.command.text


def test_the_documented_calls_work(gate: Gate, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "://vision.example.com:8443" in line and not line.startswith("In")]
    assert len(lines) == 3
    write_video(tmp_path / "clip.mp4", "libx264", count=5, size_hw=(240, 320))
    (tmp_path / "cat.jpg").write_bytes(PHOTO.read_bytes())
    environment = gate.environment(gate.token) | {
        "CURL_CA_BUNDLE": str(gate.certificates.authority),
        "PYTHONPATH": str(ROOT),
    }
    for line in lines:
        command = line.replace("vision.example.com:8443", f"localhost:{gate.port}")
        command = command.replace("onestream ", f"{sys.executable} -m onestream ", 1)
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert "espresso" in done.stdout or '"name":"classify"' in done.stdout or "clip.mp4" in done.stdout


CLOSED = {
    "GET": """
        /v2/systemsharedmemory/status /v2/trace/setting /v2/models/stats /v2/models/classify/stats
        /v2/models/classify/infer /metrics /""",
    "DELETE": "/v2/models/classify",
    # What is let through by its normal form goes on in its normal form, so the last ones reach nothing either.
    "POST": """
        /v2/repository/index /v2/repository/models/classify/load /v2/repository/models/classify/unload /v2/logging
        /v2/systemsharedmemory/region/x/register /v2/cudasharedmemory/region/x/register
        /v2/models/classify_model/infer /v2/models/classify_video/infer
        /v2/models/classify/versions/1/infer /v2/models/classify/generate
        /v2/models/classify/infer/../../../repository/index /v2/repository/index?/v2/models/classify/infer
        /v2/models/classify%2Finfer%2F..%2F..%2F..%2Frepository%2Findex /v2/models/classify/infer%0a
        /v2/models/classify/infer/ //v2//repository/index""",
}


@pytest.mark.parametrize("method", CLOSED)
def test_http_paths_are_closed(gate: Gate, method: str) -> None:
    for path in CLOSED[method].split():
        status, body = gate.request(method, path, b"{}", token=gate.token)
        assert status == 403, (path, body)
        assert "closed" in json.loads(body)["error"]


def test_a_path_that_is_let_through_goes_on_as_the_proxy_wrote_it(gate: Gate) -> None:
    sneaky = "/v2/repository/../models/classify/ready"
    assert gate.request("GET", sneaky, token=gate.token)[0] == 200, "Triton itself answers 404 to this path"


def test_a_body_that_is_too_large_is_refused_and_the_client_says_so(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a stated length too."""
    too_large = bytes(LIMIT + 200_000)
    for name, value in gate.certificates.trusted.items():
        monkeypatch.setenv(name, value)
    with (
        Client(gate.url("https"), token=gate.token, max_body_bytes=2 * LIMIT) as client,
        pytest.raises(BadImage) as failure,
    ):
        client.classify(too_large)
    assert failure.value.code == "too_large"
    message = messages.ModelInferRequest(model_name="classify", raw_input_contents=[too_large])
    with pytest.raises(grpc.RpcError, match=r"bad image \(too_large\)") as refused:
        gate.call("ModelInfer", message, token=gate.token)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    chunks = (bytes(1 << 20) for _ in range(34))
    head = {"Inference_Header_Content_Length": "0"}
    with contextlib.suppress(OSError):  # nginx may hang up before the body was sent
        assert gate.request("POST", "/v2/models/classify/infer", chunks, token=gate.token, **head)[0] == 413


def test_an_image_of_the_largest_size_passes(gate: Gate) -> None:
    padded = PHOTO.read_bytes() + bytes(LIMIT - PHOTO.stat().st_size)
    tensor = messages.ModelInferRequest.InferInputTensor(name="image", datatype="UINT8", shape=[1, len(padded)])
    message = messages.ModelInferRequest(model_name="classify", inputs=[tensor], raw_input_contents=[padded])
    assert gate.call("ModelInfer", message, token=gate.token).outputs


def test_compressed_requests_are_refused(gate: Gate) -> None:
    body = gzip.compress(bytes(1000))
    status, _ = gate.request("POST", "/v2/models/classify/infer", body, token=gate.token, Content_Encoding="gzip")
    assert status == 415
    message = messages.ModelInferRequest(model_name="classify", raw_input_contents=[bytes(1000)])
    code = gate.code("ModelInfer", message, token=gate.token, compression=grpc.Compression.Gzip)
    assert code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("upload", "seen"),
    [(("--data-binary", "@-"), "200000 bytes"), (("--upload-file", "-"), "no length")],
    ids=["with its length", "without a length"],
)
def test_json_is_bounded_and_has_no_values_over_http_2_too(gate: Gate, upload: tuple[str, str], seen: str) -> None:
    photo = PHOTO.read_bytes()
    size = len(photo)

    def head(**values: object) -> bytes:
        tensor = {"name": "image", "datatype": "UINT8", "shape": [1, size], **values}
        return json.dumps({"inputs": [tensor]}).encode()

    answered, answer = infer_by_http_2(gate, *upload, body=b"[" * 200_000)
    assert answered == 422
    assert f"this has {seen}." in answer
    for json_part, status, said in (
        (head(parameters={"binary_data_size": size}), 200, "espresso"),
        (head(data=[size]), 422, "come as binary data"),
    ):
        length = ("--header", f"Inference-Header-Content-Length: {len(json_part)}")
        answered, answer = infer_by_http_2(gate, *upload, *length, body=json_part + photo)
        assert answered == status
        assert said in answer


def infer_by_http_2(gate: Gate, *options: str, body: bytes) -> tuple[int, str]:
    """Status and body of the answer to curl."""
    command = ["curl", "--silent", "--http2", "--request", "POST", "--write-out", "%{http_version}:%{http_code}"]
    command += ["--cacert", str(gate.certificates.authority), "--header", f"Authorization: Bearer {gate.token}"]
    command += [*options, f"{gate.url('https')}/v2/models/classify/infer"]
    printed = subprocess.run(command, input=body, capture_output=True, timeout=60, check=False).stdout
    answer, _, end = printed.decode(errors="replace").rpartition("2:")
    return int(end), answer


def test_a_slow_client_is_cut_off(gate: Gate) -> None:
    context = ssl.create_default_context(cafile=str(gate.certificates.authority))
    head = f"POST /v2/models/classify/infer HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {gate.token}\r\n"
    for sent in (head, f"{head}Content-Length: 100\r\n\r\nx"):
        with (
            socket.create_connection(("127.0.0.1", gate.port)) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as connection,
        ):
            connection.sendall(sent.encode())
            connection.settimeout(PATIENCE_S)
            answer = connection.recv(4096)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408")


def test_a_stream_may_pause_for_longer_than_a_request_and_ends_when_its_client_goes(gate: Gate) -> None:
    port = int(gate.server.grpc_address.rpartition(":")[2])

    def connections() -> int:
        """Those of the proxy with Triton; others may call it directly."""
        proxy = psutil.Process(gate.command.process.pid)
        found = [one for process in proxy.children(recursive=True) for one in process.net_connections("tcp")]
        return sum(one.status == "ESTABLISHED" and bool(one.raddr) and one.raddr.port == port for one in found)

    def parts() -> Iterator[Any]:
        time.sleep(SLOW_CLIENT_S + 1.5)
        yield messages.ModelInferRequest(model_name="nobody")
        time.sleep(30)

    with gate.channel() as channel:
        call = gate.stream(channel, parts())
        answer = next(iter(call))
        assert "unknown model" in answer.error_message
        assert connections() > 0
        busy = connections()
        call.cancel()
        wait_until(lambda: connections() < busy, "Triton still has the stream's connection")


def test_a_stream_s_error_is_a_message_whatever_its_caller_asks_for(gate: Gate) -> None:
    """Triton 2.51 dies of streams that it ends with an error, as it does where this metadata is true."""
    # Our own model ends no stream with an error; one that is not there is refused by Triton itself.
    message = messages.ModelInferRequest(model_name="nothing")
    with gate.channel() as channel:
        call = gate.stream(channel, iter([message]), ("triton_grpc_error", "true"))
        assert "unknown model" in next(call).error_message
        call.cancel()
