"""A running proxy with the server behind it, and the ways to call it: HTTP, gRPC, and our own commands."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from proxies import Certificates, RunningCommand
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving.server import Server

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Gate:
    """A running proxy, the server behind it, and a token that it knows."""

    server: Server
    command: RunningCommand
    certificates: Certificates
    token_file: Path
    token: str
    port: int

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

    def call(self, method: str, message: object | None = None, *, token: str | None = None, **options: Any) -> Any:
        """The answer to one gRPC call; raises grpc.RpcError. A message for every method is the empty one."""
        metadata = [] if token is None else [("authorization", f"Bearer {token}")]
        credentials = grpc.ssl_channel_credentials(self.certificates.authority.read_bytes())
        with grpc.secure_channel(f"localhost:{self.port}", credentials) as channel:
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
        environment = {**os.environ, **self.certificates.trusted}
        if token is not None:
            environment["ONESTREAM_TOKEN"] = token
        command = [sys.executable, "-m", "onestream", *arguments, "--url", f"{scheme}://localhost:{self.port}"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)
