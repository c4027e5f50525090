"""A running proxy with the server behind it, and the ways to call it: HTTP, gRPC, and our own commands."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from patience import PATIENCE_S
from proxies import Certificates, RunningCommand, make_certificates, proxy_command
from shared_server import SharedServer
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from onestream.serving.proxy.tokens import add_token
from onestream.serving.server.triton.ports import free_port

ROOT = Path(__file__).parents[2]
CLASSIFY_MODELS = ("classify", "classify_fused", "classify_video")


@dataclass(frozen=True)
class Gate:
    """A running proxy, the server behind it, and a token that it knows."""

    server: SharedServer
    command: RunningCommand
    certificates: Certificates
    token_file: Path
    token: str
    port: int

    def url(self, scheme: str) -> str:
        return f"{scheme}://localhost:{self.port}"

    def environment(self, token: str | None) -> dict[str, str]:
        """What our commands are told by: whom they trust, and the token."""
        given = {**os.environ, **self.certificates.trusted}
        return given if token is None else {**given, "ONESTREAM_TOKEN": token}

    def https(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        return http.client.HTTPSConnection("localhost", self.port, timeout=30, context=context)

    def request(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Status and body of one request, whose path is sent as it is."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        connection = self.https()
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def channel(self) -> Any:
        credentials = grpc.ssl_channel_credentials(self.certificates.authority.read_bytes())
        return grpc.secure_channel(f"localhost:{self.port}", credentials)

    def stream(self, channel: Any, messages: Iterator[Any], *metadata: tuple[str, str]) -> Any:
        """A stream of alice's on a channel."""
        metadata = (("authorization", f"Bearer {self.token}"), *metadata)
        return GRPCInferenceServiceStub(channel).ModelStreamInfer(messages, metadata=metadata)

    def call(self, method: str, message: object | None = None, *, token: str | None = None, **options: Any) -> Any:
        """The answer to one gRPC call; raises grpc.RpcError. A message for every method is the empty one."""
        metadata = [] if token is None else [("authorization", f"Bearer {token}")]
        with self.channel() as channel:
            if message is not None:
                stub = GRPCInferenceServiceStub(channel)
                return getattr(stub, method)(message, metadata=metadata, timeout=30, **options)
            call = channel.unary_unary(method, Empty.SerializeToString, lambda answer: answer)
            return call(Empty(), metadata=metadata, timeout=30, **options)

    def code(self, method: str, message: object | None = None, **options: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as failure:
            self.call(method, message, **options)
        code: grpc.StatusCode = failure.value.code()  # type: ignore[attr-defined]
        return code

    def onestream(self, *arguments: str, scheme: str = "grpcs", token: str | None = None) -> Any:
        """One command of ours that calls the proxy, with the token in its environment."""
        command = [sys.executable, "-m", "onestream", *arguments, "--url", self.url(scheme)]
        environment = self.environment(token)
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)

    def read_tokens_until(self, token: str, expected: int) -> None:
        """Let the proxy read its tokens anew, until it answers ``expected`` to this one."""
        self.command.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE_S
        while self.request("GET", "/v2", token=token)[0] != expected:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@contextmanager
def gate_before(server: SharedServer, folder: Path, *options: str) -> Iterator[Gate]:
    """A proxy before ``classify`` of ``server``, with TLS and alice's token; its files go into ``folder``."""
    certificates = make_certificates(folder)
    tokens = folder / "tokens.conf"
    token = add_token(tokens, "alice")
    port = free_port("127.0.0.1")
    with proxy_command(
        folder / "output",
        *("--listen", f"127.0.0.1:{port}", "--token-file", str(tokens)),
        *("--tls-cert", str(certificates.certificate), "--tls-key", str(certificates.key)),
        *("--http", server.http_address, "--grpc", server.grpc_address),
        *("--repository", str(server.repository), *(f"--model={model}" for model in CLASSIFY_MODELS)),
        *options,
    ) as command:
        yield Gate(server, command, certificates, tokens, token, port)
